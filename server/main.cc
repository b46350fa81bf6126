// switchyard-server: serves one Mixture-of-Experts model over gRPC.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/flags.h"
#include "scheduler/base/join_token.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "server/config.h"
#include "server/server.h"

ABSL_FLAG(std::string, model, "",
          "directory of a HuggingFace checkpoint: config.json, *.safetensors, tokenizer.json (required)");
ABSL_FLAG(std::string, served_model_name, "",
          "the name that requests give as `model` (default: the directory's last part; ORG/NAME of a hub snapshot)");
ABSL_FLAG(std::string, tokenizer, "", "tokenizer.json to use instead of the model's");
ABSL_FLAG(std::string, chat_template, "", "chat template (Jinja) to use instead of the model's");
ABSL_FLAG(std::string, host, "127.0.0.1",
          "address to listen on, IPv4 or IPv6 (::1); another than loopback wants --insecure");
ABSL_FLAG(int, port, 50051, "gRPC port; 0 = any free one");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1",
          "address of the metrics page; another than loopback wants --insecure");
ABSL_FLAG(int, metrics_port, 9464, "port of http://METRICS_HOST:PORT/metrics; 0 = any free one, -1 = none");
ABSL_FLAG(int, worker_metrics_port, 0,
          "port of the first local worker's metrics, the others take the next ones; 0 = any free ones (switchyard "
          "status tells them), -1 = none");
ABSL_FLAG(bool, insecure, false, "allow plaintext gRPC on another address than loopback");
ABSL_FLAG(int, local_workers, 1, "worker processes that this server starts on this machine");
ABSL_FLAG(int, workers, 0, "workers that make the serving group, those from elsewhere included; 0 = local_workers");
ABSL_FLAG(int, local_train_workers, 0,
          "worker processes that this server starts on this machine to train jobs; they want --dataset_root and "
          "--checkpoint_root");
ABSL_FLAG(int, train_workers, 0,
          "training workers that there may be, those from elsewhere included; 0 = local_train_workers");
ABSL_FLAG(int, train_threads, 0,
          "threads of each local training worker; 0 = the cores that this process may use / local_train_workers");
ABSL_FLAG(bool, train_on_serving, false,
          "serving workers also train jobs that ask for it (on_serving_workers), while they have nothing to serve; "
          "wants --dataset_root and --checkpoint_root; of those from elsewhere the ones with --role=both");
ABSL_FLAG(int, train_yield_ms, 50,
          "with --train_on_serving: milliseconds within which training stops when there is something to serve: its "
          "loops are cut by it, and what takes longer is counted (switchyard_worker_train_late_yields_total)");
ABSL_FLAG(double, train_share, 0,
          "with --train_on_serving: how much of the time in which there is something to serve training gets, "
          "[0, 0.9]; steps wait for it, 50 ms at a time, and one that takes longer than a second counts as one");
ABSL_FLAG(
    std::string, train_offload_dir, "",
    "of local training workers: directory of a disk for masters and moments of experts that do not fit into memory "
    "(a job's `offload`); empty = they must fit");
ABSL_FLAG(std::string, dataset_root, "",
          "directory beneath which users name data to pack and to train on; nothing outside of it is opened");
ABSL_FLAG(
    std::string, checkpoint_root, "",
    "directory beneath which training jobs name models, and where their checkpoints, logs and the journal of jobs "
    "(jobs.sqlite) are; the same on all workers; nothing outside of it is opened");
ABSL_FLAG(std::string, worker_binary, "", "program of the local workers (default: switchyard-worker beside this one)");
ABSL_FLAG(std::string, join_token_file, "",
          "file with the token that workers from elsewhere must present; needed where some are awaited and --host is "
          "not loopback (local workers have one of their own, drawn at each start)");
ABSL_FLAG(std::string, dtype, "auto",
          "what workers compute in, wherever they are: auto (as the checkpoint), fp32, bf16, fp16, fp64");
ABSL_FLAG(std::string, device, "cpu", "what local workers compute on: cpu, or cuda: worker N on GPU N");
ABSL_FLAG(double, gpu_memory_fraction, 0.9,
          "of each GPU's memory, how much a local worker's weights, scratch and KV cache may take together; (0, 1]");
ABSL_FLAG(bool, deterministic, false,
          "on GPUs: what is computed of a sequence does not depend on what else is computed with it; slower");
ABSL_FLAG(bool, cuda_graphs, true, "on GPUs: local workers record steps of decodes and replay them");
ABSL_FLAG(std::string, load_format, "auto",
          "auto = the checkpoint's weights; dummy = local workers make random ones of the shapes in its config.json");
ABSL_FLAG(std::string, profile, "",
          "with local workers: file of what a profiling run (switchyard profile) learned of this model's routing: what "
          "coming layers' experts get is foreseen from the start, and an expert budget begins with the most popular; "
          "empty = it is learned while serving");
ABSL_FLAG(std::string, forecast, "auto",
          "of local workers: foresee what coming layers' experts get: auto = where a placement uses it or a profile is "
          "named; always, for an expert budget, too; never");
ABSL_FLAG(
    std::string, profile_out, "",
    "with local workers: file for what they have learned of the model's routing when they end, with \".\" and the "
    "worker's number behind; \"switchyard profile merge\" makes one of them for --profile, in which what was loaded "
    "is once; probes are "
    "then fitted on every row, which makes steps slower; empty = none");
ABSL_FLAG(int, path_length, 3,
          "of local workers: of how many layers the paths are by which experts of a coming layer are foreseen (l of "
          "Lina, 1 to 6); a --profile has to be of as many (switchyard profile --path_length)");
ABSL_FLAG(std::string, expert_budget, "",
          "how many of its experts, replicas among them, each local worker holds where it computes, of all layers "
          "together: a share (25%) or bytes; the others are copied when they are needed, from a file that they share; "
          "empty = all");
ABSL_FLAG(std::string, expert_policy, "auto",
          "with --expert_budget: who goes when another expert comes: auto (the fastest of the others as traffic goes), "
          "expected_use, lru, lfu, static");
ABSL_FLAG(
    std::string, expert_file_dir, "/dev/shm",
    "with --expert_budget or --placement other than static: directory of the file with all experts, packed; kept for "
    "the next start, in memory until another model's is made there");
ABSL_FLAG(std::string, cold_experts, "copy",
          "on GPUs with --expert_budget: copy = experts that are in no slot are copied to one; host = their rows may "
          "also be computed where their weights are, by the CPU, when that is cheaper: it takes a second copy of the "
          "experts in memory, and answers may differ by what is in slots");
ABSL_FLAG(double, expert_copy_bytes_per_second, 0,
          "for tests and benchmarks: experts come no faster than over a link of this rate; 0 = as fast as they can");
ABSL_FLAG(std::string, placement, "static",
          "which worker computes which expert's rows: static = E / R experts a worker, static+spare = replicas spread "
          "evenly and rows split by their counts, agreed = replicas follow the traffic, every worker decides alike, "
          "central = as Lina has it, no_estimate and no_finetune = parts of that; answers do not change");
ABSL_FLAG(int, spare_slots, 0, "with --placement other than static: replicas that each worker holds of every layer");
ABSL_FLAG(
    int, replica_slots, 0,
    "with --rebalance_steps: experts of every layer that each worker may hold beside its share and the replicas of "
    "--spare_slots");
ABSL_FLAG(
    int64_t, rebalance_steps, 0,
    "with --placement=static+spare or agreed: after so many steps the server looks whether experts had better live "
    "elsewhere, and moves those that pay; 0 = never");
ABSL_FLAG(int, threads, 0, "threads of each local worker; 0 = the cores that this process may use / local_workers");
ABSL_FLAG(
    int64_t, kv_cache_bytes, 0,
    "bytes of KV cache per worker, taken at the start; 0 = up to a share of what memory the weights leave, taken as "
    "it fills");
ABSL_FLAG(int, max_model_len, 0, "longest sequence in tokens, prompt and output together; 0 = the model's context");
ABSL_FLAG(int, max_num_seqs, 64, "sequences that run at once on each worker");
ABSL_FLAG(int, max_batched_tokens, 2048, "tokens that one step computes on each worker at most");
ABSL_FLAG(int, prefill_chunk, 0, "tokens of one prompt in one step at most; 0 = what max_batched_tokens leaves");
ABSL_FLAG(int, block_size, 16, "tokens per block of the KV cache");
ABSL_FLAG(bool, prefix_reuse, true, "keep KV blocks of finished requests and reuse them for prompts that begin alike");
ABSL_FLAG(int, max_queue, 1024, "requests that may wait; beyond it RESOURCE_EXHAUSTED at once");
ABSL_FLAG(int, min_loan_rows, -1,
          "fewest rows of a step that one worker computes for another that has more of them (all but their attention); "
          "0 = never, -1 = from where it pays for the model and the workers' threads");
ABSL_FLAG(int, max_in_flight, 2, "steps that are under way at once (1 or 2)");
ABSL_FLAG(bool, preempt_every_step, false,
          "verification: every step preempts a sequence; slow, must not change answers");
ABSL_FLAG(int, max_streams, 512, "open Generate calls; beyond it RESOURCE_EXHAUSTED at once");
ABSL_FLAG(
    int, max_streams_per_client, 0,
    "open Generate calls of one client, that is of one address; 0 = half of max_streams, all of them on loopback");
ABSL_FLAG(
    int, max_connections, 512,
    "open connections; beyond it they are closed at once. Local workers do not count, and as many places as there "
    "are workers from elsewhere are kept for addresses from which some have joined");
ABSL_FLAG(int, max_connections_per_client, 0,
          "open connections of one client, that is of one address; 0 = half of max_connections");
ABSL_FLAG(int64_t, max_waiting_text_bytes, 64 << 20,
          "bytes of calls whose text waits to be parsed and tokenized, of one client (on loopback: of one connection) "
          "half of them; beyond it RESOURCE_EXHAUSTED at once");
ABSL_FLAG(absl::Duration, request_message_timeout, absl::Seconds(30),
          "how long a Generate call may be open before its request message has come");
ABSL_FLAG(absl::Duration, slow_client_timeout, absl::Seconds(30), "how long a client may leave its stream unread");
ABSL_FLAG(absl::Duration, default_deadline, absl::Seconds(300),
          "how long a request may take that comes without a deadline; at most --max_deadline");
ABSL_FLAG(absl::Duration, max_deadline, absl::Hours(1), "longest deadline that a request may have");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(25),
          "how long running requests may go on after SIGTERM or Ctrl-C; a second one ends them at once");
ABSL_FLAG(
    absl::Duration, start_timeout, absl::Minutes(10),
    "how long a group of workers may take to form, while none registers or loads: the first one or the server ends, "
    "a later one or requests do not wait for it any more");
ABSL_FLAG(absl::Duration, step_timeout, absl::Seconds(120),
          "a step that takes longer, beside what --row_timeout adds for its tokens, ends the workers' group");
ABSL_FLAG(absl::Duration, row_timeout, absl::Seconds(1),
          "what a step may take longer for each token that it computes; less once steps were measured");

namespace switchyard {
namespace {

constexpr int kExitBadConfig = 2;
constexpr size_t kMinTokenBytes = 16;
constexpr int64_t kOwnOpenFiles = 128;  // besides the connections of clients and workers

// InvalidArgument: no placement of that name.
absl::Status TakeExpertFlags(ServerConfig* config) {
  config->profile = absl::GetFlag(FLAGS_profile);
  config->forecast = absl::GetFlag(FLAGS_forecast);
  config->profile_out = absl::GetFlag(FLAGS_profile_out);
  config->path_length = absl::GetFlag(FLAGS_path_length);
  config->experts.budget = absl::GetFlag(FLAGS_expert_budget);
  config->experts.policy = absl::GetFlag(FLAGS_expert_policy);
  config->experts.file_dir = absl::GetFlag(FLAGS_expert_file_dir);
  config->experts.copy_bytes_per_second = absl::GetFlag(FLAGS_expert_copy_bytes_per_second);
  config->experts.cold = absl::GetFlag(FLAGS_cold_experts);
  config->placement.spare_slots = absl::GetFlag(FLAGS_spare_slots);
  config->placement.replica_slots = absl::GetFlag(FLAGS_replica_slots);
  config->placement.rebalance_steps = absl::GetFlag(FLAGS_rebalance_steps);
  const std::string name = absl::GetFlag(FLAGS_placement);
  absl::StatusOr<PlacementMode> mode = ParsePlacementMode(name);
  if (!mode.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--placement=", name, ": must be one of ", PlacementModeNames()));
  }
  config->placement.mode = *mode;
  return absl::OkStatus();
}

void TakeWorkerFlags(ServerConfig* config) {
  config->local_workers = absl::GetFlag(FLAGS_local_workers);
  config->workers = absl::GetFlag(FLAGS_workers);
  config->worker_binary = absl::GetFlag(FLAGS_worker_binary);
  config->local_train_workers = absl::GetFlag(FLAGS_local_train_workers);
  config->train_workers = absl::GetFlag(FLAGS_train_workers);
  config->train_threads = absl::GetFlag(FLAGS_train_threads);
  config->train_on_serving = absl::GetFlag(FLAGS_train_on_serving);
  config->train_yield_ms = absl::GetFlag(FLAGS_train_yield_ms);
  config->train_share = absl::GetFlag(FLAGS_train_share);
  config->dataset_root = absl::GetFlag(FLAGS_dataset_root);
  config->checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root);
  config->train_offload_dir = absl::GetFlag(FLAGS_train_offload_dir);
}

void TakeLimitFlags(ServerConfig* config) {
  config->max_streams = absl::GetFlag(FLAGS_max_streams);
  config->max_streams_per_client = absl::GetFlag(FLAGS_max_streams_per_client);
  config->max_connections = absl::GetFlag(FLAGS_max_connections);
  config->max_connections_per_client = absl::GetFlag(FLAGS_max_connections_per_client);
  config->max_waiting_text_bytes = absl::GetFlag(FLAGS_max_waiting_text_bytes);
  config->request_message_timeout = absl::GetFlag(FLAGS_request_message_timeout);
  config->slow_client_timeout = absl::GetFlag(FLAGS_slow_client_timeout);
  config->max_deadline = absl::GetFlag(FLAGS_max_deadline);
  config->default_deadline = absl::GetFlag(FLAGS_default_deadline);
  config->row_timeout = absl::GetFlag(FLAGS_row_timeout);
  config->drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  config->step_timeout = absl::GetFlag(FLAGS_step_timeout);
  config->start_timeout = absl::GetFlag(FLAGS_start_timeout);
}

absl::StatusOr<ServerConfig> ConfigFromFlags() {
  ServerConfig config;
  config.model = absl::GetFlag(FLAGS_model);
  config.served_model_name = absl::GetFlag(FLAGS_served_model_name);
  config.tokenizer = absl::GetFlag(FLAGS_tokenizer);
  config.chat_template = absl::GetFlag(FLAGS_chat_template);
  config.host = absl::GetFlag(FLAGS_host);
  config.port = absl::GetFlag(FLAGS_port);
  config.metrics_host = absl::GetFlag(FLAGS_metrics_host);
  config.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  config.worker_metrics_port = absl::GetFlag(FLAGS_worker_metrics_port);
  config.insecure = absl::GetFlag(FLAGS_insecure);
  TakeWorkerFlags(&config);
  config.dtype = absl::GetFlag(FLAGS_dtype);
  config.threads = absl::GetFlag(FLAGS_threads);
  config.device = absl::GetFlag(FLAGS_device);
  config.gpu_memory_fraction = absl::GetFlag(FLAGS_gpu_memory_fraction);
  config.deterministic = absl::GetFlag(FLAGS_deterministic);
  config.cuda_graphs = absl::GetFlag(FLAGS_cuda_graphs);
  config.load_format = absl::GetFlag(FLAGS_load_format);
  const absl::Status placement = TakeExpertFlags(&config);
  config.kv_cache_bytes = absl::GetFlag(FLAGS_kv_cache_bytes);
  config.batching.max_model_len = absl::GetFlag(FLAGS_max_model_len);
  config.batching.max_num_seqs = absl::GetFlag(FLAGS_max_num_seqs);
  config.batching.max_batched_tokens = absl::GetFlag(FLAGS_max_batched_tokens);
  config.batching.prefill_chunk = absl::GetFlag(FLAGS_prefill_chunk);
  config.batching.block_size = absl::GetFlag(FLAGS_block_size);
  config.batching.prefix_reuse = absl::GetFlag(FLAGS_prefix_reuse);
  config.batching.max_queue = absl::GetFlag(FLAGS_max_queue);
  config.batching.min_loan_rows = absl::GetFlag(FLAGS_min_loan_rows);
  config.batching.max_in_flight = absl::GetFlag(FLAGS_max_in_flight);
  config.batching.preempt_every_step = absl::GetFlag(FLAGS_preempt_every_step);
  TakeLimitFlags(&config);
  const absl::StatusOr<std::string> token = ReadJoinToken(absl::GetFlag(FLAGS_join_token_file), kMinTokenBytes);
  if (token.ok()) config.join_token = *token;
  // Every problem at once.
  const absl::Status finished = config.Finish();
  const int64_t workers = int64_t{config.num_workers()} + config.num_train_workers();
  const int64_t own_files = kOwnOpenFiles + 2 * workers;
  const absl::Status guarded =
      GuardProcess(config.max_connections + own_files,
                   absl::StrCat("--max_connections=", config.max_connections, " and ", own_files, " of its own"));
  std::vector<std::string> problems;
  for (const absl::Status& status : {placement, finished, token.status(), guarded}) {
    if (!status.ok()) problems.emplace_back(status.message());
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  return config;
}

int Complain(const absl::Status& status) {
  const std::string text(status.message());
  std::fprintf(stderr, "switchyard-server: %s\n", text.c_str());
  return kExitBadConfig;
}

// Waits for SIGINT or SIGTERM (0), or for the server to fail (false).
bool WaitForSignal(const sigset_t& signals, const Server& server) {
  for (;;) {
    const timespec poll = {0, 50 * 1000 * 1000};
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return true;
    if (server.failed().HasBeenNotified()) return false;
  }
}

int Main() {
  SetLogName("server");
  absl::StatusOr<ServerConfig> config = ConfigFromFlags();
  if (!config.ok()) return Complain(config.status());
  // Blocked in every thread; only WaitForSignal takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*std::move(config));
  if (!server.ok()) return Complain(server.status());
  if (!WaitForSignal(signals, **server)) {
    (*server)->Stop();
    return Complain(absl::InvalidArgumentError((*server)->failure()));
  }
  LogInfo("stopping: running requests may end, new ones are refused");
  (*server)->Drain([&signals] {
    const timespec now = {0, 0};
    return sigtimedwait(&signals, nullptr, &now) > 0;
  });
  (*server)->Stop();
  LogInfo("stopped");
  // Everything is closed; what is left are destructors, of which the metrics' page alone waits for seconds.
  std::_Exit(0);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  switchyard::SetUpLibraries();
  switchyard::ParseFlagsOrExit(
      argc, argv,
      {.name = "switchyard-server",
       .version = "0.1.0",
       .summary = "serves a Mixture-of-Experts model over gRPC.\n\n  switchyard-server --model=DIR [--local_workers=2]",
       .file = "server/main.cc"});
  return switchyard::Main();
}
