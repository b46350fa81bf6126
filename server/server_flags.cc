#include "server/server_flags.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/offload/expert_budget.h"
#include "scheduler/placement/placement_mode.h"

namespace switchyard::server {
namespace {

// Bounds of every time limit.
constexpr absl::Duration kShortest = absl::Milliseconds(1), kLongest = absl::Hours(1000);

void AddModelFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Model");
  set->Add("model=DIR", &c->model,
           "directory of a HuggingFace checkpoint: config.json, *.safetensors, tokenizer.json (required)")
      .Mark(kToServingWorkers);
  set->Add("served_model_name=NAME", &c->served_model_name,
           "the name that requests give as `model` (default: the directory's last part; ORG/NAME of a hub snapshot)");
  set->Add("dtype=NAME", &c->dtype,
           "what workers compute in, wherever they are: auto (as the checkpoint), fp32, bf16, fp16, fp64")
      .Mark(kToServingWorkers);
  set->Add("max_model_len", &c->batching.max_model_len,
           "longest sequence in tokens, prompt and output together; 0 = the model's context");
  set->Add("tokenizer=FILE", &c->tokenizer, "tokenizer.json to use instead of the model's");
  set->Add("chat_template=FILE", &c->chat_template, "chat template (Jinja) to use instead of the model's");
  set->Add("load_format=NAME", &c->load_format,
           "auto = the checkpoint's weights; dummy = local workers make random ones of the shapes in its config.json")
      .Mark(kToServingWorkers);
}

void AddServingFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Serving");
  set->Add("port", &c->port, "gRPC port; 0 = any free one").Range(0, 65535);
  set->Add("host=ADDRESS", &c->host,
           "address to listen on, IPv4 or IPv6 (::1); another than loopback wants --insecure");
  set->Add("insecure", &c->insecure, "allow plaintext gRPC on another address than loopback")
      .Mark(kToServingWorkers | kToTrainingWorkers);
  set->Add("max_num_seqs", &c->batching.max_num_seqs, "sequences that run at once on each worker");
  set->Add("max_batched_tokens", &c->batching.max_batched_tokens,
           "tokens that one step computes on each worker at most");
  set->Add("kv_cache_bytes", &c->kv_cache_bytes,
           "bytes of KV cache per worker, taken at the start; 0 = up to a share of what memory the weights leave, "
           "taken as it fills")
      .Range(0, int64_t{1} << 50);
  set->Add("prefix_reuse", &c->batching.prefix_reuse,
           "keep KV blocks of finished requests and reuse them for prompts that begin alike");
  set->Add("prefill_chunk", &c->batching.prefill_chunk,
           "tokens of one prompt in one step at most; 0 = what max_batched_tokens leaves");
  set->Add("block_size", &c->batching.block_size, "tokens per block of the KV cache");
  set->Add("min_rebalance_rows", &c->batching.min_rebalance_rows,
           "fewest rows of a step that one worker computes for another that has more of them (all but their "
           "attention); 0 = never, -1 = from where it pays for the model and the workers' threads")
      .Alias("min_loan_rows");  // its name in the first 0.1.0 builds
  set->Add("max_in_flight", &c->batching.max_in_flight, "steps that are under way at once (1 or 2)");
  set->Add("metrics_port", &c->metrics_port, "port of http://METRICS_HOST:PORT/metrics; 0 = any free one, -1 = none")
      .Range(-1, 65535);
  set->Add("metrics_host=ADDRESS", &c->metrics_host,
           "address of the metrics page; another than loopback wants --insecure")
      .Mark(kToServingWorkers | kToTrainingWorkers);
}

void AddWorkerFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Workers");
  set->Add("local_workers", &c->local_workers, "worker processes that this server starts on this machine").Range(0, 64);
  set->Add("workers", &c->workers,
           "workers that make the serving group, those from elsewhere included; 0 = local_workers")
      .Range(0, 1024);
  set->Add("device=NAME", &c->device, "what local workers compute on: cpu, or cuda: worker N on GPU N");
  set->Add("threads", &c->threads,
           "threads of each local worker; 0 = the cores that this process may use / local_workers")
      .Range(0, 1024)
      .Mark(kToServingWorkers);
  set->Add("join_token_file=FILE", &c->join_token_file,
           "file with the token that workers from elsewhere must present; needed where some are awaited and --host is "
           "not loopback (local workers have one of their own, drawn at each start)");
  set->Add("gpu_memory_fraction", &c->gpu_memory_fraction,
           "of each GPU's memory, how much a local worker's weights, scratch and KV cache may take together; (0, 1]")
      .Mark(kToServingWorkers);
  set->Add("deterministic", &c->deterministic,
           "on GPUs: what is computed of a sequence does not depend on what else is computed with it; slower")
      .Mark(kToServingWorkers);
  set->Add("cuda_graphs", &c->cuda_graphs, "on GPUs: local workers record steps of decodes and replay them")
      .Mark(kToServingWorkers);
  set->Add("worker_metrics_port", &c->worker_metrics_port,
           "port of the first local worker's metrics, the others take the next ones; 0 = any free ones (switchyard "
           "status tells them), -1 = none");
  set->Add("worker_binary=FILE", &c->worker_binary,
           "program of the local workers (default: switchyard-worker beside this one)");
}

// The flags that decide where experts are.
void AddPlacementFlags(placement::PlacementSettings* placement, FlagSet* set) {
  set->BeginGroup("Experts");
  set->AddFunction(
      "placement=NAME", std::string(placement::NameOf(placement->mode)),
      [placement](absl::string_view name) {
        const absl::StatusOr<placement::PlacementMode> mode = placement::ParsePlacementMode(name);
        if (mode.ok()) placement->mode = *mode;
        return mode.ok() ? std::string() : absl::StrCat("must be one of ", placement::PlacementModeNames());
      },
      "which worker computes which expert's rows: static = E / R experts a worker, static+spare = replicas spread "
      "evenly and rows split by their counts, agreed = replicas follow the traffic, every worker decides alike, "
      "central = as Lina has it, no_estimate and no_finetune = parts of that; answers do not change");
  set->Add("spare_slots", &placement->spare_slots,
           "with --placement other than static: replicas that each worker holds of every layer");
  set->Add("rebalance_steps", &placement->rebalance_steps,
           "with --placement=static+spare or agreed: after so many steps the server looks whether experts had better "
           "live elsewhere, and moves those that pay; 0 = never");
  set->Add("replica_slots", &placement->replica_slots,
           "with --rebalance_steps: experts of every layer that each worker may hold beside its share and the "
           "replicas of --spare_slots");
}

// The flags of predictions about coming layers.
void AddForecastFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Experts");
  set->Add("profile=FILE", &c->profile,
           "with local workers: file of what a profiling run (switchyard profile) learned of this model's routing: "
           "what coming layers' experts get is foreseen from the start, and an expert budget begins with the most "
           "popular; empty = it is learned while serving")
      .Mark(kToServingWorkers);
  set->Add("profile_out=FILE", &c->profile_out,
           "with local workers: file for what they have learned of the model's routing when they end, with \".\" and "
           "the worker's number behind; \"switchyard profile merge\" makes one of them for --profile, in which what "
           "was loaded is once; probes are then fitted on every row, which makes steps slower; empty = none");
  set->Add("forecast=NAME", &c->forecast,
           "of local workers: foresee what coming layers' experts get: auto = where a placement uses it or a profile "
           "is named; always, for an expert budget, too; never")
      .Mark(kToServingWorkers);
  set->Add("path_length", &c->path_length,
           "of local workers: of how many layers the paths are by which experts of a coming layer are foreseen (l of "
           "Lina, 1 to 6); a --profile has to be of as many (switchyard profile --path_length)")
      .Mark(kToServingWorkers);
}

void AddTrainingFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Training");
  set->Add("dataset_root=DIR", &c->dataset_root,
           "directory beneath which users name data to pack and to train on; nothing outside of it is opened")
      .Mark(kToTrainingWorkers | kToServingThatTrain);
  set->Add("checkpoint_root=DIR", &c->checkpoint_root,
           "directory beneath which training jobs name models, and where their checkpoints, logs and the journal of "
           "jobs (jobs.sqlite) are; the same on all workers; nothing outside of it is opened")
      .Mark(kToTrainingWorkers | kToServingThatTrain);
  set->Add("local_train_workers", &c->local_train_workers,
           "worker processes that this server starts on this machine to train jobs; they want --dataset_root and "
           "--checkpoint_root")
      .Range(0, 64);
  set->Add("train_workers", &c->train_workers,
           "training workers that there may be, those from elsewhere included; 0 = local_train_workers")
      .Range(0, 1024);
  set->Add("train_threads", &c->train_threads,
           "threads of each local training worker; 0 = the cores that this process may use / local_train_workers")
      .Range(0, 1024);
  set->Add("train_on_serving", &c->train_on_serving,
           "serving workers also train jobs that ask for it (on_serving_workers), while they have nothing to serve; "
           "wants --dataset_root and --checkpoint_root; of those from elsewhere the ones with --role=both");
  set->Add("train_share", &c->train_share,
           "with --train_on_serving: how much of the time in which there is something to serve training gets, "
           "[0, 0.9]; steps wait for it, 50 ms at a time, and one that takes longer than a second counts as one");
  set->Add("train_yield_ms", &c->train_yield_ms,
           "with --train_on_serving: milliseconds within which training stops when there is something to serve: its "
           "loops are cut by it, and what takes longer is counted (switchyard_worker_train_late_yields_total)")
      .Range(1, 10000);
  set->Add("train_offload_dir=DIR", &c->train_offload_dir,
           "of local training workers: directory of a disk for masters and moments of experts that do not fit into "
           "memory (a job's `offload`); empty = they must fit")
      .Mark(kToTrainingWorkers);
}

void AddLimitFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Limits");
  set->Add("max_queue", &c->batching.max_queue, "requests that may wait; beyond it RESOURCE_EXHAUSTED at once");
  set->Add("max_streams", &c->max_streams, "open Generate calls; beyond it RESOURCE_EXHAUSTED at once")
      .Range(1, 100000);
  set->Add("max_streams_per_client", &c->max_streams_per_client,
           "open Generate calls of one client, that is of one address; 0 = half of max_streams, all of them on "
           "loopback");
  set->Add("max_connections", &c->max_connections,
           "open connections; beyond it they are closed at once. Local workers do not count, and as many places as "
           "there are workers from elsewhere are kept for addresses from which some have joined")
      .Range(1, 100000);
  set->Add("max_connections_per_client", &c->max_connections_per_client,
           "open connections of one client, that is of one address; 0 = half of max_connections");
  set->Add("max_waiting_text_bytes", &c->max_waiting_text_bytes,
           "bytes of calls whose text waits to be parsed and tokenized, of one client (on loopback: of one "
           "connection) half of them; beyond it RESOURCE_EXHAUSTED at once")
      .Range(4 * c->max_request_bytes, int64_t{1} << 40);
}

void AddTimeLimitFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Limits");
  set->Add("default_deadline", &c->default_deadline,
           "how long a request may take that comes without a deadline; at most --max_deadline")
      .Range(kShortest, kLongest);
  set->Add("max_deadline", &c->max_deadline, "longest deadline that a request may have").Range(kShortest, kLongest);
  set->Add("request_message_timeout", &c->request_message_timeout,
           "how long a Generate call may be open before its request message has come")
      .Range(kShortest, kLongest);
  set->Add("slow_client_timeout", &c->slow_client_timeout, "how long a client may leave its stream unread")
      .Range(kShortest, kLongest);
  set->Add("drain_timeout", &c->drain_timeout,
           "how long running requests may go on after SIGTERM or Ctrl-C; a second one ends them at once")
      .RangeOrZero(kShortest, kLongest);
  set->Add("start_timeout", &c->start_timeout,
           "how long a group of workers may take to form, while none registers or loads: the first one or the server "
           "ends, a later one or requests do not wait for it any more")
      .Range(kShortest, kLongest);
  set->Add("step_timeout", &c->step_timeout,
           "a step that takes longer, beside what --row_timeout adds for its tokens, ends the workers' group")
      .Range(kShortest, kLongest);
  set->Add("row_timeout", &c->row_timeout,
           "what a step may take longer for each token that it computes; less once steps were measured")
      .RangeOrZero(kShortest, kLongest);
}

}  // namespace

FlagSet FlagsOfServer(ServerConfig* config) {
  FlagSet flags;
  for (const char* title : {"Model", "Serving", "Workers", "Experts", "Training", "Limits", "Debugging"}) {
    flags.BeginGroup(title);
  }
  AddModelFlags(config, &flags);
  AddServingFlags(config, &flags);
  AddWorkerFlags(config, &flags);
  AddPlacementFlags(&config->placement, &flags);
  offload::AddExpertBudgetFlags(&config->experts, "each local worker", kToServingWorkers, &flags);
  AddForecastFlags(config, &flags);
  AddTrainingFlags(config, &flags);
  AddLimitFlags(config, &flags);
  AddTimeLimitFlags(config, &flags);
  flags.BeginGroup("Debugging");
  flags.Add("preempt_every_step", &config->batching.preempt_every_step,
            "verification: every step preempts a sequence; slow, must not change answers");
  return flags;
}

std::vector<std::string> FlagsToWorkers(const ServerConfig& config, uint32_t marks) {
  ServerConfig copy = config;
  return FlagsOfServer(&copy).ArgumentsOf(marks);
}

}  // namespace switchyard::server
