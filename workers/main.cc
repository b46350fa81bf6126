// switchyard-worker: holds a part of a model and runs the steps that a server plans.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/flags.h"
#include "scheduler/base/join_token.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/device_setup.h"
#include "workers/metrics.h"
#include "workers/ops/isa.h"
#include "workers/own_address.h"
#include "workers/service.h"
#include "workers/tensor/device_backend.h"
#include "workers/worker.h"

ABSL_FLAG(std::string, server, "127.0.0.1:50051",
          "HOST:PORT of the server to join; an IPv6 address in brackets: [::1]:50051");
ABSL_FLAG(std::string, model, "", "directory of the checkpoint that the server serves (required)");
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
ABSL_FLAG(int, metrics_port, -1,
          "port of http://METRICS_HOST:PORT/metrics; 0 = any free one (switchyard status tells it), -1 = none");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1",
          "address on which the metrics' page listens; 0.0.0.0 or :: = every one of this machine");
ABSL_FLAG(bool, insecure, false, "allow a plaintext link to a server on a public address");

namespace switchyard {
namespace {

constexpr int kExitBadConfig = 2;
constexpr char kMaybeNoIpv6[] = ", or was libcivetweb built without IPv6? then give --metrics_host=127.0.0.1)";
constexpr int64_t kOpenFiles = 512;  // a few for each peer

int Complain(absl::string_view text) {
  std::fprintf(stderr, "switchyard-worker: %s\n", std::string(text).c_str());
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

// InvalidArgument: no device's name.  Unimplemented: of a kind that this program is built without.
absl::StatusOr<Device> ParseDevice(absl::string_view name) {
  if (name == "cpu") return Device::Cpu();
  int index = 0;
  if (name != "cuda" && !(absl::ConsumePrefix(&name, "cuda:") && absl::SimpleAtoi(name, &index) && index >= 0)) {
    return absl::InvalidArgumentError("must be cpu, cuda or cuda:N");
  }
  RETURN_IF_ERROR(BackendOf(DeviceKind::kCuda).status());
  return Device::Cuda(index);
}

// Of the device and of what only GPUs have.
std::string CheckDevice() {
  std::string problems;
  const std::string device = absl::GetFlag(FLAGS_device);
  if (const absl::Status status = ParseDevice(device).status(); !status.ok())
    absl::StrAppend(&problems, "--device=", device, ": ", status.message(), "\n");
  if (const double fraction = absl::GetFlag(FLAGS_gpu_memory_fraction); !(fraction > 0 && fraction <= 1))
    absl::StrAppend(&problems, "--gpu_memory_fraction=", fraction, ": must be within (0, 1]\n");
  for (const absl::CommandLineFlag* flag :
       {&absl::GetFlagReflectionHandle(FLAGS_gpu_memory_fraction), &absl::GetFlagReflectionHandle(FLAGS_deterministic),
        &absl::GetFlagReflectionHandle(FLAGS_cuda_graphs)}) {
    // A server says all of them to its workers: a value that is the default says nothing that is not so.
    if (device != "cpu" || flag->CurrentValue() == flag->DefaultValue()) continue;
    absl::StrAppend(&problems, "--", flag->Name(), "=", flag->CurrentValue(), ": is for GPUs, but --device=cpu\n");
  }
  return problems;
}

ExpertBudgetOptions ExpertFlags() {
  return {.budget = absl::GetFlag(FLAGS_expert_budget),
          .policy = absl::GetFlag(FLAGS_expert_policy),
          .file_dir = absl::GetFlag(FLAGS_expert_file_dir),
          .copy_bytes_per_second = absl::GetFlag(FLAGS_expert_copy_bytes_per_second),
          .cold = absl::GetFlag(FLAGS_cold_experts)};
}

ForecastOptions ForecastFlags() {
  return {.when = absl::GetFlag(FLAGS_forecast),
          .profile = absl::GetFlag(FLAGS_profile),
          .profile_out = absl::GetFlag(FLAGS_profile_out),
          .path_length = absl::GetFlag(FLAGS_path_length)};
}

std::string CheckExpertFlags() {
  const ExpertBudgetOptions options = ExpertFlags();
  std::string problems;
  for (const absl::Status& status :
       {CheckExpertBudget(options),
        CheckColdExperts(options, absl::GetFlag(FLAGS_device) == "cpu", absl::GetFlag(FLAGS_deterministic))}) {
    if (!status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  }
  return problems;
}

// All problems of the flags, one a line; empty if there are none.
std::string CheckFlags() {
  std::string problems;
  if (absl::GetFlag(FLAGS_model).empty())
    absl::StrAppend(&problems, "--model: missing; give the checkpoint's directory\n");
  absl::StrAppend(&problems, CheckDevice());
  if (const std::string format = absl::GetFlag(FLAGS_load_format); format != "auto" && format != "dummy")
    absl::StrAppend(&problems, "--load_format=", format, ": must be auto or dummy\n");
  absl::StrAppend(&problems, CheckExpertFlags());
  if (const absl::Status status = CheckForecastOptions(ForecastFlags()); !status.ok())
    absl::StrAppend(&problems, status.message(), "\n");
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

int Main() {
  const int local_index = absl::GetFlag(FLAGS_local_index);
  SetLogName(local_index >= 0 ? absl::StrCat("worker ", local_index) : "worker");
  FormDeviceGroupFn form_device_group = SetUpDevices(absl::GetFlag(FLAGS_deterministic));
  if (const std::string problems = CheckFlags(); !problems.empty()) return Complain(problems);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  WorkerOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.dtype = absl::GetFlag(FLAGS_dtype);
  options.threads = absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : UsableCores();
  options.device = *ParseDevice(absl::GetFlag(FLAGS_device));
  options.gpu_memory_fraction = absl::GetFlag(FLAGS_gpu_memory_fraction);
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  options.graphs = absl::GetFlag(FLAGS_cuda_graphs);
  options.dummy_weights = absl::GetFlag(FLAGS_load_format) == "dummy";
  options.experts = ExpertFlags();
  options.forecast = ForecastFlags();
  options.form_device_group = std::move(form_device_group);
  absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Open(std::move(options));
  if (!worker.ok()) return Complain(worker.status().message());

  WorkerMetrics metrics;
  LinkOptions link_options;
  if (const int wanted = absl::GetFlag(FLAGS_metrics_port); wanted >= 0) {
    link_options.metrics_host = BareHost(absl::GetFlag(FLAGS_metrics_host));
    if (!CheckGroupAddress(link_options.metrics_host).ok() && !absl::GetFlag(FLAGS_insecure)) {
      return Complain(absl::StrCat("--metrics_host=", link_options.metrics_host,
                                   ": another address than loopback or a private one wants --insecure"));
    }
    link_options.metrics_port = metrics.Expose(link_options.metrics_host, wanted);
    if (link_options.metrics_port < 0) {
      return Complain(absl::StrCat("--metrics_port=", wanted, ": cannot listen on ",
                                   JoinHostPort(link_options.metrics_host, wanted), " (is it in use",
                                   IsIpv6(link_options.metrics_host) ? kMaybeNoIpv6 : "?)"));
    }
    LogInfo("metrics on http://", JoinHostPort(link_options.metrics_host, link_options.metrics_port), "/metrics");
  }
  link_options.server = absl::GetFlag(FLAGS_server);
  link_options.join_token = ReadJoinToken(absl::GetFlag(FLAGS_join_token_file), 0).value_or("");
  link_options.local_index = local_index;
  link_options.address = BareHost(absl::GetFlag(FLAGS_address));
  link_options.insecure = absl::GetFlag(FLAGS_insecure);
  WorkerLink link(link_options, worker->get(), &metrics);
  // The signals' own thread; it ends with the process.
  std::thread([&link, signals] {
    int received = 0;
    sigwait(&signals, &received);
    link.Stop();
  }).detach();
  absl::Status status = link.Run();
  status.Update((*worker)->SaveProfile());
  // Everything is closed; what is left are destructors, of which the metrics' page alone waits for seconds.
  std::_Exit(status.ok() ? 0 : Complain(status.message()));
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  switchyard::ParseFlagsOrExit(
      argc, argv,
      {.name = "switchyard-worker",
       .version = "0.1.0",
       .summary =
           "runs a part of a model for a Switchyard server.\n\n  switchyard-worker --server=HOST:PORT --model=DIR",
       .file = "workers/main.cc"});
  return switchyard::Main();
}
