// switchyard-worker: holds a part of a model and runs the steps that a server plans, or trains its jobs.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/support/host_port.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/flags.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/join_token.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo/gloo_communicator.h"
#include "workers/ops/core/isa.h"
#include "workers/process/metrics.h"
#include "workers/process/own_address.h"
#include "workers/process/role_flags.h"
#include "workers/serving/device_setup.h"
#include "workers/serving/worker.h"
#include "workers/session/service.h"
#include "workers/session/service_both.h"
#include "workers/session/service_serving.h"
#include "workers/session/service_training.h"
#include "workers/train/job/check_trainable.h"

ABSL_FLAG(std::string, server, "127.0.0.1:50051",
          "HOST:PORT of the server to join; an IPv6 address in brackets: [::1]:50051");
ABSL_FLAG(std::string, role, "serve",
          "serve = hold a part of a model and serve it; train = train the server's jobs; both = serve, and train while "
          "there is nothing to serve (a server's --train_on_serving); on the CPU");
ABSL_FLAG(std::string, model, "",
          "directory of the checkpoint that the server serves (required, unless it only trains)");
ABSL_FLAG(std::string, dataset_root, "",
          "with --role=train or both (required): directory beneath which jobs name their data");
ABSL_FLAG(std::string, checkpoint_root, "",
          "with --role=train or both (required): directory beneath which jobs name models, and have their "
          "checkpoints");
ABSL_FLAG(std::string, check_model, "",
          "folder of a model beneath --checkpoint_root: prints one line of JSON, what a job would train or why none "
          "can, and ends; a server asks so before it accepts a job");
ABSL_FLAG(bool, check_weights, false, "with --check_model: a job begins from its weights, so their files are opened");
ABSL_FLAG(std::string, train_offload_dir, "",
          "with --role=train or both: directory of a disk for masters and moments of experts that do not fit into "
          "memory (a job's "
          "`offload`); nothing is left in it; empty = they must fit");
ABSL_FLAG(
    int, train_send_buffer_kib, 64,
    "with --role=train or both: what the kernel may hold of a connection between two workers in mode preempt: more "
    "is slower for all-to-alls, but a network whose bandwidth times its round trip is longer stands idle; 0 = the "
    "kernel finds out");
ABSL_FLAG(std::string, device, "cpu", "what to compute on: cpu, cuda (the first GPU) or cuda:N");
ABSL_FLAG(double, gpu_memory_fraction, 0.9,
          "of a GPU's memory, how much weights, scratch and KV cache may take together; (0, 1]");
ABSL_FLAG(bool, deterministic, false,
          "on a GPU: what is computed of a sequence does not depend on what else is computed with it; slower");
ABSL_FLAG(bool, cuda_graphs, true, "on a GPU: record steps of decodes and replay them");
ABSL_FLAG(std::string, load_format, "auto",
          "auto = the checkpoint's weights; dummy = random ones of the shapes that its config.json says");
ABSL_FLAG(
    std::string, expert_budget, "",
    "how many of its experts, replicas among them, this worker holds where it computes, of all layers together: a "
    "share (25%) or bytes; the others are copied when they are needed, from a file that the machine's workers share; "
    "empty = all");
ABSL_FLAG(std::string, expert_policy, "auto",
          "with --expert_budget: who goes when another expert comes: auto (the fastest of the others as traffic goes), "
          "expected_use, lru, lfu, static");
ABSL_FLAG(
    std::string, expert_file_dir, "/dev/shm",
    "with --expert_budget or a server's --placement other than static: directory of the file with all experts, packed; "
    "kept for the next start, in memory until another model's is made there");
ABSL_FLAG(std::string, cold_experts, "copy",
          "on GPUs with --expert_budget: copy = experts that are in no slot are copied to one; host = their rows may "
          "also be computed where their weights are, by the CPU, when that is cheaper: it takes a second copy of the "
          "experts in memory, and answers may differ by what is in slots");
ABSL_FLAG(double, expert_copy_bytes_per_second, 0,
          "for tests and benchmarks: experts come no faster than over a link of this rate; 0 = as fast as they can");
ABSL_FLAG(
    std::string, profile, "",
    "file of what a profiling run (switchyard profile) learned of this model's routing: what coming layers' experts "
    "get is foreseen from the start, and an expert budget begins with the most popular; empty = it is learned while "
    "serving");
ABSL_FLAG(
    std::string, profile_out, "",
    "file for what this worker has learned of the model's routing when it ends, as --profile takes it, in a group's "
    "rank 0 with what it had loaded, in the others without; probes are then fitted on every row, which makes steps "
    "slower; empty = none");
ABSL_FLAG(
    std::string, forecast, "auto",
    "foresee what coming layers' experts get: auto = where a placement uses it or a profile is named; always, for "
    "an expert budget, too; never");
ABSL_FLAG(int, path_length, 3,
          "of how many layers the paths are by which experts of a coming layer are foreseen (l of Lina, 1 to 6); a "
          "--profile has to be of as many");
ABSL_FLAG(std::string, dtype, "auto", "what to compute in: auto (as the checkpoint), fp32, bf16, fp16, fp64");
ABSL_FLAG(int, threads, 0, "threads; 0 = one per core that this process may use");
ABSL_FLAG(std::string, address, "auto",
          "address of this machine at which the other workers reach this one, loopback or private; auto = the one by "
          "which this machine reaches the server");
ABSL_FLAG(std::string, join_token_file, "", "file with the server's join token");
ABSL_FLAG(int, local_index, -1, "set by a server for the workers that it starts");
ABSL_FLAG(std::string, server_socket, "", "set by a server for the workers that it starts: where they reach it");
ABSL_FLAG(std::string, refusal_file, "",
          "set by a server for the workers that it starts: file for why one ends with code 2, besides standard error");
ABSL_FLAG(int, metrics_port, -1,
          "port of http://METRICS_HOST:PORT/metrics; 0 = any free one (switchyard status tells it), -1 = none");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1",
          "address on which the metrics' page listens; 0.0.0.0 or :: = every one of this machine");
ABSL_FLAG(bool, insecure, false, "allow a plaintext link to a server on a public address");

namespace switchyard {
namespace {

constexpr char kVersion[] = "0.1.0";
constexpr int kExitBadConfig = 2;
constexpr char kMaybeNoIpv6[] = ", or was libcivetweb built without IPv6? then give --metrics_host=127.0.0.1)";
constexpr int64_t kOpenFiles = 512;  // a few for each peer

int Complain(absl::string_view text) {
  std::fprintf(stderr, "switchyard-worker: %s\n", std::string(text).c_str());
  if (const std::string path = absl::GetFlag(FLAGS_refusal_file); !path.empty()) std::ofstream(path) << text;
  return kExitBadConfig;
}

// Links are plaintext: they stay on this machine or in a private network, as the collectives do.
std::string CheckServer(const std::string& server) {
  const absl::StatusOr<HostPort> target = SplitHostPort(server);
  if (!target.ok()) return absl::StrCat("--server: ", target.status().message(), "\n");
  const absl::StatusOr<Route> route = RouteTo(target->host, target->port);
  // A name that is not known now may be later; the link asks again, and then its address has to be a private one.
  if (!route.ok() || CheckGroupAddress(route->peer).ok() || absl::GetFlag(FLAGS_insecure)) return "";
  return absl::StrCat("--server=", server, ": ", route->peer,
                      " is a public address; a plaintext link to it wants --insecure\n");
}

// All problems of the flags, one a line; empty if there are none.
std::string CheckFlags() {
  std::string problems;
  if (const std::optional<WorkerRole> role = RoleFlag(); role.has_value()) {
    absl::StrAppend(&problems, CheckRoleFlags(*role));
  } else {
    absl::StrAppend(&problems, "--role=", absl::GetFlag(FLAGS_role), ": must be serve, train or both\n");
  }
  if (absl::GetFlag(FLAGS_threads) < 0)
    absl::StrAppend(&problems, "--threads=", absl::GetFlag(FLAGS_threads), ": must not be negative\n");
  absl::StrAppend(&problems, CheckServer(absl::GetFlag(FLAGS_server)));
  if (const std::string address = BareHost(absl::GetFlag(FLAGS_address)); address != kAutoAddress) {
    if (const absl::Status status = CheckGroupAddress(address); !status.ok())
      absl::StrAppend(&problems, "--address: ", status.message(), "\n");
  }
  if (const absl::Status status = ReadJoinToken(absl::GetFlag(FLAGS_join_token_file), 0).status(); !status.ok()) {
    absl::StrAppend(&problems, status.message(), "\n");
  }
  const int metrics_port = absl::GetFlag(FLAGS_metrics_port);
  if (metrics_port < -1 || metrics_port > 65535)
    absl::StrAppend(&problems, "--metrics_port=", metrics_port, ": must be within [-1, 65535]\n");
  if (const absl::Status status = GuardProcess(kOpenFiles, "its links"); !status.ok())
    absl::StrAppend(&problems, status.message(), "\n");
  if (const absl::Status status = CheckIsaSetting(); !status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  return problems;
}

// The page with the metrics, where one is wanted: its port, or what is wrong.
absl::StatusOr<int> ExposeMetrics(const std::string& host, WorkerMetrics* metrics) {
  const int wanted = absl::GetFlag(FLAGS_metrics_port);
  if (wanted < 0) return -1;
  if (!CheckGroupAddress(host).ok() && !absl::GetFlag(FLAGS_insecure)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics_host=", host, ": another address than loopback or a private one wants --insecure"));
  }
  const int port = metrics->Expose(host, wanted);
  if (port < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", wanted, ": cannot listen on ",
                                                   JoinHostPort(host, wanted), " (is it in use",
                                                   IsIpv6(host) ? kMaybeNoIpv6 : "?)"));
  }
  LogInfo("metrics on http://", JoinHostPort(host, port), "/metrics");
  return port;
}

absl::StatusOr<LinkOptions> LinkFlags(WorkerMetrics* metrics) {
  LinkOptions options;
  options.metrics_host = BareHost(absl::GetFlag(FLAGS_metrics_host));
  ASSIGN_OR_RETURN(options.metrics_port, ExposeMetrics(options.metrics_host, metrics));
  options.server = absl::GetFlag(FLAGS_server);
  options.socket = absl::GetFlag(FLAGS_server_socket);
  options.join_token = ReadJoinToken(absl::GetFlag(FLAGS_join_token_file), 0).value_or("");
  options.local_index = absl::GetFlag(FLAGS_local_index);
  options.address = BareHost(absl::GetFlag(FLAGS_address));
  options.insecure = absl::GetFlag(FLAGS_insecure);
  return options;
}

// worker: null if it only trains.
std::unique_ptr<LinkRole> MakeRole(WorkerRole kind, Worker* worker, int threads, WorkerMetrics* metrics) {
  if (kind == WorkerRole::kServe) return std::make_unique<ServingRole>(worker, metrics);
  TrainingOptions training = {.dataset_root = absl::GetFlag(FLAGS_dataset_root),
                              .checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root),
                              .offload_dir = absl::GetFlag(FLAGS_train_offload_dir),
                              .socket = {.send_buffer_bytes = absl::GetFlag(FLAGS_train_send_buffer_kib) << 10},
                              .threads = threads,
                              .software = kVersion};
  if (kind == WorkerRole::kTrain) return std::make_unique<TrainingRole>(std::move(training), metrics);
  return std::make_unique<BothRole>(worker, std::move(training), metrics);
}

int CheckModel() {
  const absl::StatusOr<RootDir> root = RootDir::Open(absl::GetFlag(FLAGS_checkpoint_root), "--checkpoint_root");
  if (!root.ok()) return Complain(root.status().message());
  const absl::StatusOr<ModelConfig> checked =
      CheckTrainable(*root, absl::GetFlag(FLAGS_check_model), absl::GetFlag(FLAGS_check_weights));
  std::fputs(ModelCheckLine(checked).c_str(), stdout);
  return std::fflush(stdout) == 0 && checked.ok() ? 0 : kExitBadConfig;
}

sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

int Main() {
  if (!absl::GetFlag(FLAGS_check_model).empty()) return CheckModel();
  const int local_index = absl::GetFlag(FLAGS_local_index);
  const WorkerRole kind = RoleFlag().value_or(WorkerRole::kServe);
  const std::string name = kind == WorkerRole::kTrain ? "trainer" : "worker";
  SetLogName(local_index >= 0 ? absl::StrCat(name, " ", local_index) : name);
  FormDeviceGroupFn form_device_group = SetUpDevices(absl::GetFlag(FLAGS_deterministic));
  if (const std::string problems = CheckFlags(); !problems.empty()) return Complain(problems);
  const sigset_t signals = BlockSignals();

  WorkerMetrics metrics;
  const int threads = absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : UsableCores();
  std::unique_ptr<Worker> worker;  // null: it only trains
  if (kind != WorkerRole::kTrain) {
    WorkerOptions options = ServingOptions();
    options.threads = threads;
    options.form_device_group = std::move(form_device_group);
    absl::StatusOr<std::unique_ptr<Worker>> opened = Worker::Open(std::move(options));
    if (!opened.ok()) return Complain(opened.status().message());
    worker = *std::move(opened);
  }
  const std::unique_ptr<LinkRole> role = MakeRole(kind, worker.get(), threads, &metrics);
  const absl::StatusOr<LinkOptions> link_options = LinkFlags(&metrics);
  if (!link_options.ok()) return Complain(link_options.status().message());
  WorkerLink link(*link_options, role.get());
  // The signals' own thread; it ends with the process.
  std::thread([&link, signals] {
    int received = 0;
    sigwait(&signals, &received);
    link.Stop();
  }).detach();
  absl::Status status = link.Run();
  if (worker != nullptr) status.Update(worker->SaveProfile());
  // Everything is closed; what is left are destructors, of which the metrics' page alone waits for seconds.
  std::_Exit(status.ok() ? 0 : Complain(status.message()));
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  switchyard::SetUpLibraries();
  switchyard::ParseFlagsOrExit(
      argc, argv,
      {.name = "switchyard-worker",
       .version = switchyard::kVersion,
       .summary =
           "runs a part of a model for a Switchyard server, or trains.\n\n  switchyard-worker --server=HOST:PORT "
           "--model=DIR\n  switchyard-worker --server=HOST:PORT --role=train --dataset_root=DIR --checkpoint_root=DIR",
       .file = "workers/process/main.cc"});
  return switchyard::Main();
}
