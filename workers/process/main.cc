// switchyard-worker: holds a part of a model and runs the steps that a server plans, or trains its jobs.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/link/job_spec_codec.h"
#include "proto/support/host_port.h"
#include "proto/support/join_token.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/flags/program_flags.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/version.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/comm/group/group_forming.h"
#include "workers/ops/core/isa.h"
#include "workers/process/metrics.h"
#include "workers/process/own_address.h"
#include "workers/process/role_flags.h"
#include "workers/process/worker_flags.h"
#include "workers/serving/device_setup.h"
#include "workers/serving/worker.h"
#include "workers/session/both_role.h"
#include "workers/session/serving_role.h"
#include "workers/session/training_role.h"
#include "workers/session/worker_link.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/job/check_job.h"

namespace switchyard::worker {
namespace {

constexpr int kExitBadConfig = 2;
constexpr char kMaybeNoIpv6[] = ", or was libcivetweb built without IPv6? then give --metrics_host=127.0.0.1)";
constexpr int64_t kOpenFiles = 512;  // a few for each peer
// A job's datasets and its evaluation, which are open while it trains.
constexpr int64_t kDataFiles = 2 * int64_t{jobs::kMaxDatasets};

int Complain(const WorkerFlags& flags, absl::string_view text) {
  std::fprintf(stderr, "switchyard-worker: %s\n", std::string(text).c_str());
  if (!flags.refusal_file.empty()) std::ofstream(flags.refusal_file) << text;
  return kExitBadConfig;
}

// Links without TLS stay on this machine or in a private network, as the collectives do.
std::string CheckServer(const std::string& server, bool may_be_public) {
  const absl::StatusOr<rpc::HostPort> target = rpc::SplitHostPort(server);
  if (!target.ok()) return absl::StrCat("--server: ", target.status().message(), "\n");
  const absl::StatusOr<Route> route = RouteTo(target->host, target->port);
  // A name that is not known now may be later; the link asks again, and then its address has to be a private one.
  if (!route.ok() || comm::CheckGroupAddress(route->peer).ok() || may_be_public) return "";
  return absl::StrCat("--server=", server, ": ", route->peer,
                      " is a public address; a plaintext link to it wants --tls_ca, or --insecure\n");
}

// All problems of the flags, one a line; empty if there are none.
std::string CheckFlags(const WorkerFlags& flags, const FlagSet& table) {
  std::string problems;
  if (const std::optional<WorkerRole> role = ParseRole(flags.role); role.has_value()) {
    absl::StrAppend(&problems, CheckRoleFlags(*role, flags, table));
  } else {
    absl::StrAppend(&problems, "--role=", flags.role, ": must be serve, train or both\n");
  }
  if (flags.threads < 0) absl::StrAppend(&problems, "--threads=", flags.threads, ": must not be negative\n");
  absl::StrAppend(&problems, CheckServer(flags.server, flags.insecure || flags.tls.used()));
  if (const absl::Status tls = rpc::MakeChannelCredentials(flags.tls).status(); !tls.ok())
    absl::StrAppend(&problems, "--tls_ca, --tls_cert, --tls_key: ", tls.message(), "\n");
  if (const std::string address = rpc::BareHost(flags.address); address != kAutoAddress) {
    if (const absl::Status status = comm::CheckGroupAddress(address); !status.ok())
      absl::StrAppend(&problems, "--address: ", status.message(), "\n");
  }
  if (const absl::Status status = rpc::ReadJoinToken(flags.join_token_file, 0).status(); !status.ok()) {
    absl::StrAppend(&problems, status.message(), "\n");
  }
  for (const FlagProblem& problem : table.OutOfRange(/*given_only=*/false))
    absl::StrAppend(&problems, problem.ToString(), "\n");
  const bool trains = ParseRole(flags.role).value_or(WorkerRole::kServe) != WorkerRole::kServe;
  if (const absl::Status status = GuardProcess(kOpenFiles + (trains ? kDataFiles : 0),
                                               trains ? "its links and the files of a job" : "its links");
      !status.ok()) {
    absl::StrAppend(&problems, status.message(), "\n");
  }
  if (const absl::Status status = ops::CheckIsaSetting(); !status.ok())
    absl::StrAppend(&problems, status.message(), "\n");
  return problems;
}

// Returns the address of the metrics page.  A local worker's is its server's, which may be any address where the
// server has TLS.  This page is plaintext, and so stays on loopback then.
std::string MetricsHost(const WorkerFlags& flags) {
  const std::string host = rpc::BareHost(flags.metrics_host);
  const bool allowed = flags.insecure || comm::CheckGroupAddress(host).ok();
  if (allowed || flags.local_index < 0 || flags.metrics_port < 0) return host;
  LogWarn("metrics on 127.0.0.1 alone: on ", host, ", neither loopback nor private, plaintext wants --insecure");
  return "127.0.0.1";
}

// The page with the metrics, where one is wanted: its port, or what is wrong.
absl::StatusOr<int> ExposeMetrics(const WorkerFlags& flags, const std::string& host, WorkerMetrics* metrics) {
  const int wanted = flags.metrics_port;
  if (wanted < 0) return -1;
  if (!comm::CheckGroupAddress(host).ok() && !flags.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics_host=", host, ": another address than loopback or a private one wants --insecure"));
  }
  const int port = metrics->Expose(host, wanted);
  if (port < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", wanted, ": cannot listen on ",
                                                   rpc::JoinHostPort(host, wanted), " (is it in use",
                                                   rpc::IsIpv6(host) ? kMaybeNoIpv6 : "?)"));
  }
  LogInfo("metrics on http://", rpc::JoinHostPort(host, port), "/metrics");
  return port;
}

absl::StatusOr<LinkOptions> LinkFlags(const WorkerFlags& flags, WorkerMetrics* metrics) {
  LinkOptions options;
  options.metrics_host = MetricsHost(flags);
  ASSIGN_OR_RETURN(options.metrics_port, ExposeMetrics(flags, options.metrics_host, metrics));
  options.server = flags.server;
  options.socket = flags.server_socket;
  options.join_token = rpc::ReadJoinToken(flags.join_token_file, 0).value_or("");
  options.local_index = flags.local_index;
  options.address = rpc::BareHost(flags.address);
  options.insecure = flags.insecure;
  options.tls = flags.tls;
  return options;
}

// worker: null if it only trains.
std::unique_ptr<LinkRole> MakeRole(const WorkerFlags& flags, Worker* worker, int threads, WorkerMetrics* metrics) {
  const WorkerRole kind = *ParseRole(flags.role);
  if (kind == WorkerRole::kServe) return std::make_unique<ServingRole>(worker, metrics);
  TrainingOptions training = {.dataset_root = flags.dataset_root,
                              .checkpoint_root = flags.checkpoint_root,
                              .offload_dir = flags.train_offload_dir,
                              .threads = threads,
                              .software = Version()};
  if (kind == WorkerRole::kTrain) return std::make_unique<TrainingRole>(std::move(training), metrics);
  return std::make_unique<BothRole>(worker, std::move(training), metrics);
}

absl::StatusOr<jobs::JobSpec> ReadSpec(std::FILE* from) {
  v1::JobSpec message;
  if (!message.ParseFromFileDescriptor(fileno(from)))
    return absl::InvalidArgumentError("standard input: is no JobSpec");
  return link::FromProto(message, {.name = "worker", .error = [](const link::SpecProblem& problem) {
                                     return absl::InvalidArgumentError(absl::StrCat(problem.field, ": ", problem.text));
                                   }});
}

int CheckJob(const WorkerFlags& flags) {
  const absl::StatusOr<RootDir> root = RootDir::Open(flags.checkpoint_root, "--checkpoint_root");
  if (!root.ok()) return Complain(flags, root.status().message());
  const absl::StatusOr<jobs::JobSpec> spec = ReadSpec(stdin);
  if (!spec.ok()) return Complain(flags, spec.status().message());
  const absl::StatusOr<train::CheckedJob> checked = train::CheckJob(*root, *spec,
                                                                    {.ranks_here = flags.check_ranks,
                                                                     .memory_bytes = ReadMachineMemory().total_bytes,
                                                                     .can_offload = !flags.train_offload_dir.empty()});
  std::fputs(train::JobCheckLine(checked).c_str(), stdout);
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

// --pack_experts.  signals: blocked; one that comes ends it, and what is incomplete is removed.
int PackExperts(const WorkerFlags& flags, const sigset_t& signals) {
  if (ParseRole(flags.role) != WorkerRole::kServe)
    return Complain(flags, absl::StrCat("--pack_experts: is for --role=serve, not ", flags.role));
  WorkerOptions options = ServingOptions(flags);
  options.threads = flags.threads > 0 ? flags.threads : UsableCores();
  const absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Open(std::move(options));
  if (!worker.ok()) return Complain(flags, worker.status().message());
  int signal = 0;
  const auto goes_on = [&](int64_t, int64_t) {
    constexpr timespec kNow = {};
    signal = std::max(signal, sigtimedwait(&signals, nullptr, &kNow));
    return signal == 0;
  };
  const absl::StatusOr<std::string> packed = (*worker)->PackExperts(goes_on);
  if (signal > 0) return 128 + signal;
  if (!packed.ok()) return Complain(flags, packed.status().message());
  std::printf("%s\n", packed->c_str());
  return std::fflush(stdout) == 0 ? 0 : kExitBadConfig;
}

int Main(const WorkerFlags& flags, const FlagSet& table) {
  if (flags.check_job) return CheckJob(flags);
  const bool only_trains = ParseRole(flags.role) == WorkerRole::kTrain;
  const std::string name = only_trains ? "trainer" : "worker";
  SetLogName(flags.local_index >= 0 ? absl::StrCat(name, " ", flags.local_index) : name);
  FormDeviceGroupFn form_device_group = SetUpDevices(flags.deterministic);
  if (const std::string problems = CheckFlags(flags, table); !problems.empty()) return Complain(flags, problems);
  const sigset_t signals = BlockSignals();
  if (flags.pack_experts) return PackExperts(flags, signals);

  WorkerMetrics metrics;
  const int threads = flags.threads > 0 ? flags.threads : UsableCores();
  std::unique_ptr<Worker> worker;  // null: it only trains
  if (!only_trains) {
    WorkerOptions options = ServingOptions(flags);
    options.threads = threads;
    options.form_device_group = std::move(form_device_group);
    absl::StatusOr<std::unique_ptr<Worker>> opened = Worker::Open(std::move(options));
    if (!opened.ok()) return Complain(flags, opened.status().message());
    worker = *std::move(opened);
  }
  std::unique_ptr<LinkRole> role = MakeRole(flags, worker.get(), threads, &metrics);
  const absl::StatusOr<LinkOptions> link_options = LinkFlags(flags, &metrics);
  if (!link_options.ok()) return Complain(flags, link_options.status().message());
  WorkerLink link(*link_options, role.get());
  // The signals' own thread; it ends with the process.
  std::thread([&link, signals] {
    int received = 0;
    sigwait(&signals, &received);
    link.Stop();
  }).detach();
  absl::Status status = link.Run();
  if (worker != nullptr) status.Update(worker->SaveProfile());
  role.reset();  // waits for an attempt at a job that has not ended yet
  // Everything is closed.  Only destructors are left, and that of the metrics' page would wait for seconds.
  std::_Exit(status.ok() ? 0 : Complain(flags, status.message()));
}

}  // namespace
}  // namespace switchyard::worker

int main(int argc, char** argv) {
  switchyard::rpc::SetUpLibraries();
  switchyard::worker::WorkerFlags flags;
  switchyard::FlagSet table = switchyard::worker::FlagsOfWorker(&flags);
  switchyard::ParseFlagsOrExit(
      argc, argv,
      {.name = "switchyard-worker",
       .version = switchyard::Version(),
       .summary =
           "runs a part of a model for a Switchyard server, or trains.\n\n  switchyard-worker --server=HOST:PORT "
           "--model=DIR\n  switchyard-worker --server=HOST:PORT --role=train --dataset_root=DIR "
           "--checkpoint_root=DIR",
       .alone_with = switchyard::worker::kSetByServer},
      &table);
  return switchyard::worker::Main(flags, table);
}
