// Jobs of others, and paths that lead out of the roots.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/security/attempts.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::string OfJob(const std::string& id) {
  return absl::StrCat("\x0a", std::string(1, static_cast<char>(id.size())), id);
}

// A call of theo about tina's job.
std::function<std::string(AttackedServers&)> OnAnothersJob(const char* method) {
  return [method](AttackedServers& servers) {
    return servers.CallAs("theo", absl::StrCat("TrainingService/", method), OfJob(servers.job_of_tina()));
  };
}

std::string ForkAnothersJob(AttackedServers& servers) {
  v1::ForkJobRequest request;
  request.set_id(servers.job_of_tina());
  return servers.CallAs("theo", "TrainingService/ForkJob", request.SerializeAsString());
}

std::string ListAnothersJobs(AttackedServers& servers) {
  const std::string id = servers.job_of_tina();
  v1::ListJobsResponse jobs;
  const grpc::Status status = v1::TrainingService::NewStub(servers.keyed()->admin_channel())
                                  ->ListJobs(server::ContextOf("theo").get(), v1::ListJobsRequest(), &jobs);
  if (!status.ok()) return InWords(status);
  return id.empty() || jobs.jobs_size() > 0 ? absl::StrCat("it shows ", jobs.jobs_size()) : "an empty list";
}

// Submits a job whose spec names the path, in place of data or of the architecture.
std::function<std::string(AttackedServers&)> Submit(std::string path, bool as_data = true) {
  return [=](AttackedServers& servers) {
    v1::JobSpec spec = TrainingServer::TinySpec();
    as_data ? spec.set_datasets(0, path) : spec.set_architecture(path);
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    return servers.CallAs("theo", "TrainingService/SubmitJob", request.SerializeAsString());
  };
}
std::function<std::string(AttackedServers&)> Pack(std::string from, std::string to) {
  return [=](AttackedServers& servers) {
    v1::PackDataRequest request;
    request.add_inputs(from);
    request.set_output(to);
    return servers.CallAs("theo", "TrainingService/PackData", request.SerializeAsString());
  };
}

// The same, of something that is put into the root of data before.
template <class MakeFn>
std::function<std::string(AttackedServers&)> SubmitMade(const char* name, MakeFn make) {
  return [=](AttackedServers& servers) {
    if (servers.keyed() == nullptr) return std::string("no server");
    const fs::path path = servers.training()->root() / "datasets" / name;
    make(path);
    const std::string answer = Submit(name)(servers);
    fs::remove(path);
    return answer;
  };
}

}  // namespace

std::vector<Attempt> JobAttempts() {
  static constexpr char kNone[] = "^NOT_FOUND JOB_NOT_FOUND";
  static constexpr char kOutside[] = "^INVALID_ARGUMENT BAD_F(IELD|ILE).*path must be under";
  return {
      {"GetAnothersJob", kNone, OnAnothersJob("GetJob")},
      {"WatchAnothersJob", kNone, OnAnothersJob("WatchJob")},
      {"PauseAnothersJob", kNone, OnAnothersJob("PauseJob")},
      {"ResumeAnothersJob", kNone, OnAnothersJob("ResumeJob")},
      {"ForkAnothersJob", kNone, ForkAnothersJob},
      {"CancelAnothersJob", kNone, OnAnothersJob("CancelJob")},
      {"DeleteAnothersJob", kNone, OnAnothersJob("DeleteJob")},
      {"ListAnothersJobs", "^an empty list", ListAnothersJobs},
      {"DataAbsolute", kOutside, Submit("/etc/passwd.bin")},
      {"DataInTheParent", kOutside, Submit("../checkpoints/x.bin")},
      {"DataInTheParentOfAFolder", kOutside, Submit("a/../../x.bin")},
      {"DataInProc", kOutside, Submit("/proc/self/environ.bin")},
      {"DataAtHome", kOutside, Submit("~/x.bin")},
      {"DataByUrl", "^INVALID_ARGUMENT BAD_FIELD.*it is a URL", Submit("http://169.254.169.254/x.bin")},
      {"DataWithNul", "^INVALID_ARGUMENT BAD_FIELD", Submit(std::string("text.jsonl\0.bin", 15))},
      {"DataOf5000Bytes", "^INVALID_ARGUMENT BAD_FIELD", Submit(std::string(5000, 'x') + ".bin")},
      {"DataByALinkOut", kOutside,
       SubmitMade("link.jsonl", [](const fs::path& path) { fs::create_symlink("/etc/passwd", path); })},
      {"DataByALinkToProc", kOutside,
       SubmitMade("proc.jsonl", [](const fs::path& path) { fs::create_symlink("/proc/self/environ", path); })},
      {"DataFromAFifo", "^INVALID_ARGUMENT BAD_FILE.*not a regular file",
       SubmitMade("fifo.jsonl", [](const fs::path& path) { (void)mkfifo(path.c_str(), 0600); })},
      {"DataFromAFolder", "^INVALID_ARGUMENT BAD_FILE.*not a regular file",
       SubmitMade("folder.jsonl", [](const fs::path& path) { fs::create_directory(path); })},
      {"ModelAbsolute", kOutside, Submit("/etc", false)},
      {"ModelInTheParent", kOutside, Submit("../datasets", false)},
      {"PackFromOutside", kOutside, Pack("/etc/passwd.jsonl", "packed.bin")},
      {"PackToOutside", kOutside, Pack("text.jsonl", "../packed.bin")},
      {"PackToAnAbsolutePath", kOutside, Pack("text.jsonl", "/tmp/packed.bin")},
  };
}

}  // namespace switchyard
