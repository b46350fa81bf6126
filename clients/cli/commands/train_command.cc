// switchyard train: submits, forks, lists, watches, pauses, resumes, cancels and deletes training jobs.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "clients/cli/command.h"
#include "clients/cli/commands/train_watch.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_fields.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/whole_file.h"
#include "clients/cpp/client.h"
#include "google/protobuf/field_mask.pb.h"
#include "google/rpc/status.pb.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::cli {
namespace {

constexpr size_t kMaxSpecBytes = 1 << 20;
constexpr char kBestStep[] = "best";
constexpr double kMaxIntervalSeconds = 3600;  // that of the server (server/jobs/api/training_requests.cc)

// Flags that every command about jobs has.
struct JobFlags {
  ServerFlags server = {.server = kAdminServer};
  std::string id;
  double interval_seconds = 1;
  bool json = false;
};

struct SubmitFlags {
  JobFlags job;
  RequestFlags<v1::JobSpec> fields;
  std::string spec;
  std::string request_id;
  bool watch = false;
};

struct ForkFlags {
  JobFlags job;
  std::string step;  // a number, "best", or empty: the newest
  int64_t skip_batches = 0;
  RequestFlags<v1::JobSpec> changes;
  std::string request_id;
  bool watch = false;
};

struct ListFlags {
  ServerFlags server = {.server = kAdminServer};
  std::vector<std::string> states, labels;
  int page_size = 100;
  std::string page_token;
  bool all = false;
  bool json = false;
};

// Sets the fields whose flags were given; `mask`, which may be null, gets their paths.
absl::Status SetGiven(const RequestFlags<v1::JobSpec>& flags, v1::JobSpec* spec, google::protobuf::FieldMask* mask) {
  ASSIGN_OR_RETURN(const Json given, flags.Given());
  for (const auto& [name, value] : given.items()) {
    const auto field = FindField<v1::JobSpec>(RequestFields<v1::JobSpec>(), name);
    const absl::Status status = field.ok() ? (*field)->set(value, spec) : field.status();
    if (!status.ok()) return BadInput(absl::StrCat("--", name, " ", status.message()));
    if (mask == nullptr) continue;
    for (const absl::string_view path : absl::StrSplit((*field)->path, ',')) mask->add_paths(std::string(path));
  }
  return absl::OkStatus();
}

// The text of --spec: of the file, or of standard input for "-".
absl::StatusOr<std::string> ReadSpec(Console& console, const std::string& file) {
  if (file != "-") return ReadWhole(file, kMaxSpecBytes);
  std::string text(kMaxSpecBytes + 1, '\0');
  console.in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(console.in.gcount()));
  if (text.size() <= kMaxSpecBytes) return text;
  return RefuseFile(file, absl::StrCat("has more bytes than the limit of ", kMaxSpecBytes));
}

absl::StatusOr<v1::SubmitJobRequest> BuildSubmit(Console& console, const SubmitFlags& flags) {
  v1::SubmitJobRequest request;
  request.set_request_id(flags.request_id);
  if (!flags.spec.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadSpec(console, flags.spec));
    const absl::StatusOr<Json> object = ParseJson(text);
    const absl::Status status = object.ok() ? MergeJson(*object, request.mutable_spec()) : object.status();
    if (!status.ok()) return RefuseFile(flags.spec, status.message());
  }
  RETURN_IF_ERROR(SetGiven(flags.fields, request.mutable_spec(), /*mask=*/nullptr));
  return request;
}

absl::StatusOr<v1::ForkJobRequest> BuildFork(const ForkFlags& flags) {
  v1::ForkJobRequest request;
  request.set_request_id(flags.request_id);
  request.set_id(flags.job.id);
  int64_t step = 0;
  if (absl::SimpleAtoi(flags.step, &step)) {
    request.set_step(step);
  } else if (!flags.step.empty() && flags.step != kBestStep) {
    return BadInput(absl::StrCat("--step must be a number of steps or best, is \"", flags.step, "\""));
  }
  request.set_skip_batches(flags.skip_batches);
  // The mask has zeros count, too.
  RETURN_IF_ERROR(SetGiven(flags.changes, request.mutable_changes(), request.mutable_mask()));
  return request;
}

int Follow(Console& console, client::Client& client, const JobFlags& flags) {
  return Watch(console, client,
               {.id = flags.id,
                .json = flags.json,
                .interval = absl::Seconds(flags.interval_seconds),
                .patience = absl::Seconds(flags.server.timeout_seconds)});
}

// Prints the new job of a submission or a fork and, if asked to, follows it.
template <class Response>
int ShowNew(Console& console, client::Client& client, JobFlags flags, bool watch, const Response& answer) {
  console.out << (flags.json ? Dump(ToJson(answer)) : answer.job().id()) << std::endl;
  if (answer.existed() && !flags.json) console.err << "[it had been submitted before]" << std::endl;
  if (!watch) return kExitOk;
  flags.id = answer.job().id();
  return Follow(console, client, flags);
}

absl::StatusOr<int> Submit(Console& console, const SubmitFlags& flags) {
  ASSIGN_OR_RETURN(const v1::SubmitJobRequest request, BuildSubmit(console, flags));
  ASSIGN_OR_RETURN(const auto client, flags.job.server.Connect());
  ASSIGN_OR_RETURN(const v1::SubmitJobResponse answer, client->SubmitJob(request));
  return ShowNew(console, *client, flags.job, flags.watch, answer);
}

absl::StatusOr<int> Fork(Console& console, const ForkFlags& flags) {
  ASSIGN_OR_RETURN(v1::ForkJobRequest request, BuildFork(flags));
  ASSIGN_OR_RETURN(const auto client, flags.job.server.Connect());
  if (flags.step == kBestStep) {
    ASSIGN_OR_RETURN(const v1::Job parent, client->GetJob(flags.job.id));
    if (!parent.has_best_checkpoint()) {
      return BadInput(absl::StrCat("--step=best: ", flags.job.id, " has no best checkpoint (--keep_best keeps one)"));
    }
    request.set_step(parent.best_checkpoint().step());
  }
  ASSIGN_OR_RETURN(const v1::ForkJobResponse answer, client->ForkJob(request));
  return ShowNew(console, *client, flags.job, flags.watch, answer);
}

// Prints a job's state after a call.
void PrintState(std::ostream& out, const v1::Job& job) {
  out << job.id() << " " << StateName(job.state()) << std::endl;
}

using JobCall = absl::StatusOr<v1::Job> (client::Client::*)(const std::string& id);
using PrintFn = void (*)(std::ostream& out, const v1::Job& job);

absl::StatusOr<int> ShowJob(Console& console, const JobFlags& flags, const absl::StatusOr<v1::Job>& job,
                            PrintFn print) {
  if (!job.ok()) return job.status();
  if (flags.json) {
    console.out << Dump(ToJson(*job)) << std::endl;
  } else {
    print(console.out, *job);
  }
  return kExitOk;
}

absl::StatusOr<int> Call(Console& console, const JobFlags& flags, JobCall call) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  return ShowJob(console, flags, (*client.*call)(flags.id), PrintState);
}

absl::StatusOr<int> Resume(Console& console, const JobFlags& flags, std::optional<int32_t> workers) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  v1::ResumeJobRequest request;
  request.set_id(flags.id);
  if (workers.has_value()) request.set_workers(*workers);
  return ShowJob(console, flags, client->ResumeJob(request), PrintState);
}

absl::StatusOr<int> Get(Console& console, const JobFlags& flags, bool spec) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  const absl::StatusOr<v1::Job> job = client->GetJob(flags.id);
  if (!job.ok() || !spec) return ShowJob(console, flags, job, PrintJob);
  console.out << CanonicalJson(job->spec()) << std::flush;
  return kExitOk;
}

absl::StatusOr<int> Delete(Console& console, const JobFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  ASSIGN_OR_RETURN(const v1::DeleteJobResponse answer, client->DeleteJob(flags.id));
  if (flags.json) {
    console.out << Dump(ToJson(answer)) << std::endl;
  } else {
    console.out << flags.id << " is deleted; freed " << answer.freed_bytes() << " bytes" << std::endl;
  }
  return kExitOk;
}

absl::StatusOr<int> WatchOne(Console& console, const JobFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  return Follow(console, *client, flags);
}

absl::StatusOr<int> List(Console& console, const ListFlags& flags) {
  v1::ListJobsRequest request;
  const absl::Status status = MergeJson({{"labels", flags.labels}}, &request);
  if (!status.ok()) return BadInput(absl::StrCat("--label: ", status.message()));
  for (const std::string& name : flags.states) {
    v1::StateChange named;  // used to parse a state's name
    const absl::Status known = MergeField("state", name, &named);
    if (!known.ok()) return BadInput(absl::StrCat("--state ", known.message()));
    request.add_states(named.state());
  }
  request.set_page_size(flags.page_size);
  request.set_page_token(flags.page_token);
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  bool header = !flags.json;
  do {
    ASSIGN_OR_RETURN(const v1::ListJobsResponse page, client->ListJobs(request));
    if (std::exchange(header, false)) {
      PrintJobHeader(console.out);
    }
    for (const v1::Job& job : page.jobs()) {
      if (flags.json) {
        console.out << Dump(ToJson(job)) << "\n";
      } else {
        PrintJobRow(console.out, job);
      }
    }
    request.set_page_token(page.next_page_token());
  } while (flags.all && !request.page_token().empty());
  console.out.flush();
  if (!request.page_token().empty()) {
    console.err << "[there are more: --page_token=" << request.page_token() << ", or --all]" << std::endl;
  }
  return kExitOk;
}

void AddIntervalFlag(JobFlags* values, absl::string_view help, FlagSet* flags) {
  flags->Add("interval=SECONDS", &values->interval_seconds, help).Range(0.0, kMaxIntervalSeconds);
}

std::shared_ptr<JobFlags> AddJobFlags(Command* command, bool watches) {
  auto values = std::make_shared<JobFlags>();
  FlagSet* flags = command->flags();
  flags->BeginGroup("Job");
  flags->AddPositional("id", &values->id, "the job").Required();
  if (watches) AddIntervalFlag(values.get(), "shortest time between lines, in seconds", flags);
  flags->Add("json", &values->json, watches ? "print a line of JSON for each change" : "print one line of JSON");
  values->server.AddTo(flags);
  return values;
}

void AddSubmit(Command* train) {
  Command* command = train->AddCommand("submit", "submit a job; prints its id");
  auto values = std::make_shared<SubmitFlags>();
  FlagSet* flags = command->flags();
  flags->BeginGroup("Job");
  flags->Add(
      "spec=FILE", &values->spec,
      "file with the job as protobuf's JSON of JobSpec, as `train get --spec` prints it, or - for standard input; "
      "short names of enums (bf16) will do; flags override it");
  values->fields.AddTo(flags);
  flags->BeginGroup("Submitting");
  flags->Add("watch", &values->watch, "follow the job until it is over");
  AddIntervalFlag(&values->job, "with --watch: shortest time between lines, in seconds", flags);
  flags->Add("json", &values->job.json, "print one line of JSON instead of the id");
  flags->Add("request_id", &values->request_id,
             "id of the request; repeating it with the same job submits the job only once");
  values->job.server.AddTo(flags);
  command->SetFooter(
      "Examples:\n"
      "  switchyard train submit --architecture=demo --dataset=train.jsonl --evaluation=heldout.jsonl \\\n"
      "      --steps=2000 --sequence_length=256 --batch_sequences=16 --learning_rate=1e-3 --watch\n"
      "  switchyard train submit --spec=job.json --steps=100 --label=try=2\n"
      "Files are the server's, beneath its dataset and checkpoint roots. All problems of a job are reported at "
      "once.");
  command->SetRun([values](Console& console) { return Submit(console, *values); });
}

void AddFork(Command* train) {
  Command* command = train->AddCommand("fork", "go on from a checkpoint of a job in a new job, with changes");
  auto values = std::make_shared<ForkFlags>();
  FlagSet* flags = command->flags();
  flags->BeginGroup("Fork");
  flags->AddPositional("id", &values->job.id, "the job, in whatever state; it is only read").Required();
  flags->Add("step=STEP", &values->step,
             "go on from its checkpoint of this step, or of the best evaluation (best); default: the newest");
  flags->Add("skip_batches=COUNT", &values->skip_batches, "pass over the next batches of the data").Range(0, 1 << 30);
  values->changes.AddTo(flags, {"base_checkpoint", "architecture", "precision"});
  flags->BeginGroup("Submitting");
  flags->Add("watch", &values->watch, "follow the new job until it is over");
  AddIntervalFlag(&values->job, "with --watch: shortest time between lines, in seconds", flags);
  flags->Add("json", &values->job.json, "print one line of JSON instead of the new job's id");
  flags->Add("request_id", &values->request_id,
             "id of the request; repeating it with the same changes forks the job only once");
  values->job.server.AddTo(flags);
  command->SetFooter(
      "Examples:\n"
      "  switchyard train fork job-0a1b2c3d4e5f --steps=4000              # longer\n"
      "  switchyard train fork job-0a1b2c3d4e5f --step=800 --learning_rate=1e-4 --skip_batches=20\n"
      "The new job has the optimizer's moments, the step and the place in the data; what is not given is as in the "
      "parent. Other data, --seed or --sequence_length begin at the data's first sequence. Schedules count steps from "
      "the parent's first one.");
  command->SetRun([values](Console& console) { return Fork(console, *values); });
}

void AddList(Command* train) {
  Command* command = train->AddCommand("list", "list the jobs, newest first");
  auto values = std::make_shared<ListFlags>();
  FlagSet* flags = command->flags();
  flags->BeginGroup("Jobs");
  flags->Add("state=STATE", &values->states, "only jobs in this state; may be repeated");
  flags->Add("label=KEY=TEXT", &values->labels, "only jobs with this label; may be repeated");
  flags->Add("all", &values->all, "list all pages");
  flags->Add("page_size", &values->page_size, "jobs per page").Range(1, 1000);
  flags->Add("page_token=TOKEN", &values->page_token,
             "list the page that begins at this token, which the page before printed");
  flags->Add("json", &values->json, "print a line of JSON for each job");
  values->server.AddTo(flags);
  command->SetRun([values](Console& console) { return List(console, *values); });
}

void AddCall(Command* train, const char* name, const char* help, JobCall call) {
  Command* command = train->AddCommand(name, help);
  const std::shared_ptr<JobFlags> values = AddJobFlags(command, /*watches=*/false);
  command->SetRun([values, call](Console& console) { return Call(console, *values, call); });
}

void AddWatch(Command* train) {
  Command* command = train->AddCommand("watch", "follow a job until it is over");
  const std::shared_ptr<JobFlags> values = AddJobFlags(command, /*watches=*/true);
  command->SetFooter(
      "Exit code 0 when the job has succeeded, 1 when it failed or was cancelled. Ctrl-C ends the watching, not the "
      "job.\n"
      "A server that is away is asked again for --timeout seconds.");
  command->SetRun([values](Console& console) { return WatchOne(console, *values); });
}

void AddGet(Command* train) {
  Command* command = train->AddCommand("get", "all about one job");
  const std::shared_ptr<JobFlags> values = AddJobFlags(command, /*watches=*/false);
  auto spec = std::make_shared<bool>(false);
  command->flags()->BeginGroup("Job");
  command->flags()->Add("spec", spec.get(), "print only its spec, as protobuf's JSON that `train submit --spec` reads");
  command->SetRun([values, spec](Console& console) { return Get(console, *values, *spec); });
}

void AddDelete(Command* train) {
  Command* command = train->AddCommand("delete", "delete a job that has ended, with its checkpoints and logs");
  const std::shared_ptr<JobFlags> values = AddJobFlags(command, /*watches=*/false);
  command->SetFooter("The job is deleted without a question.  Its forks keep their own checkpoints.");
  command->SetRun([values](Console& console) { return Delete(console, *values); });
}

void AddResume(Command* train) {
  Command* command = train->AddCommand("resume", "let a paused job go on");
  const std::shared_ptr<JobFlags> values = AddJobFlags(command, /*watches=*/false);
  auto workers = std::make_shared<std::optional<int32_t>>();
  command->flags()->BeginGroup("Job");
  command->flags()->Add("workers", workers.get(), "new number of workers (default: as before)");
  command->SetFooter(
      "On another number of workers a job's results are right, but no longer those of an undisturbed run "
      "to the bit.");
  command->SetRun([values, workers](Console& console) { return Resume(console, *values, *workers); });
}

}  // namespace

void AddTrainCommand(Command* app) {
  Command* command =
      app->AddCommand("train", "jobs that train models: submit, fork, list, get, watch, pause, resume, cancel, delete");
  AddSubmit(command);
  AddFork(command);
  AddList(command);
  AddGet(command);
  AddWatch(command);
  AddCall(command, "pause", "stop a job at a step, with a checkpoint", &client::Client::PauseJob);
  AddResume(command);
  AddCall(command, "cancel", "end a job; a running one saves a checkpoint first", &client::Client::CancelJob);
  AddDelete(command);
}

}  // namespace switchyard::cli
