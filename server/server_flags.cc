#include "server/server_flags.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/offload/expert_budget.h"
#include "scheduler/placement/placement_mode.h"
#include "server/vllm_flags.h"

namespace switchyard::server {
namespace {

// Bounds of every time limit.
constexpr absl::Duration kShortest = absl::Milliseconds(1), kLongest = absl::Hours(1000);

void AddModelFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Model");
  set->Add("model=DIR", &c->model,
           "directory of a HuggingFace checkpoint (config.json, *.safetensors, tokenizer.json), or a GGUF file; "
           "without it the server only trains, and wants --local_train_workers or --train_workers")
      .Mark(kToServingWorkers);
  set->Add(
         "adapter=DIR", &c->adapter,
         "directory of a LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors), which workers "
         "merge into the model's weights as they load them")
      .Mark(kToServingWorkers);
  set->Add(
         "adapters=NAME=DIR,...", &c->adapters,
         "LoRA adapters that workers on CPUs hold beside the model; a request asks for one as model=MODEL:NAME. Names "
         "are of letters, digits, '.', '_' and '-'; only attention's projections may be adapted")
      .Mark(kToServingWorkers);
  set->Add("served_model_name=NAME", &c->served_model_name,
           "the model's name in requests (default: the last part of --model; ORG/NAME for a snapshot of the "
           "HuggingFace hub)");
  set->Add("dtype=NAME", &c->dtype,
           "data type that all workers compute in: auto (the checkpoint's), fp32, bf16, fp16, fp64")
      .Mark(kToServingWorkers);
  set->Add("quantization=NAME", &c->quantization,
           "how workers hold matrices: auto (in the 8 or 4 bits that the checkpoint has them in), none (in the "
           "data type), int8 or int4 (groups of 32, made at load)")
      .Mark(kToServingWorkers);
  set->Add(
         "kv_cache_dtype=NAME", &c->kv_cache_dtype,
         "how workers on CPUs cache keys and values: auto (in the data type), int8 or fp8 (8 bits and a scale for each "
         "head: with 128 numbers a head 1.94 times as many tokens fit as in bf16)")
      .Mark(kToServingWorkers);
  set->Add("max_model_len", &c->batching.max_model_len,
           "longest sequence in tokens, prompt and output together; 0 = the model's context");
  set->Add("tokenizer=FILE", &c->tokenizer, "tokenizer.json to use instead of the model's");
  set->Add("chat_template=FILE", &c->chat_template, "chat template (Jinja) to use instead of the model's");
  set->Add("tool_call_parser=NAME", &c->tool_call_parser,
           "how the model writes tool calls, as vLLM names it (hermes, qwen3_coder, mistral, llama3_json, openai ...); "
           "auto = by the chat template; none = calls are text");
  set->Add(
      "reasoning_parser=NAME", &c->reasoning_parser,
      "how the model writes reasoning (deepseek_r1, qwen3, mistral, openai_gptoss ...); auto = by the chat template; "
      "none = it is text");
  set->Add(
         "load_format=NAME", &c->load_format,
         "auto = load the checkpoint's weights; dummy = local workers draw random weights of the shapes in config.json")
      .Mark(kToServingWorkers);
}

void AddServingFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Serving");
  set->Add("port", &c->port, "gRPC port of users (InferenceService); 0 = any free one").Range(0, 65535);
  set->Add("host=ADDRESS", &c->host,
           "address of --port, IPv4 or IPv6 (::1); any but loopback requires --tls_cert and either --api_keys_file or "
           "--tls_client_ca; or else --insecure");
  set->Add("http_port", &c->http_port,
           "HTTP port of users (OpenAI's API), on --host; 0 = 8000, or any free one if that is taken or --port is 0; "
           "-1 = none")
      .Range(-1, 65535);
  set->Add("http_origins=ORIGINS", &c->http_origins,
           "sites whose pages may call the HTTP port from a browser, separated by commas (https://chat.example); * = "
           "all; empty = only this server's own page");
  set->Add(
      "http_hosts=NAMES", &c->http_hosts,
      "names in URLs of the HTTP port besides localhost and loopback addresses, separated by commas; only asked on "
      "loopback without --api_keys_file, where other sites' pages could give their own name to it; * = any");
  set->Add("admin_port", &c->admin_port,
           "gRPC port of jobs and administration (TrainingService, AdminService); 0 = the one after --port, -1 = none")
      .Range(-1, 65535);
  set->Add("admin_host=ADDRESS", &c->admin_host,
           "address of --admin_port; any but loopback requires --tls_cert and --api_keys_file, or else --insecure");
  set->Add("insecure", &c->insecure, "allow plaintext, and calls without keys, on addresses other than loopback")
      .Mark(kToServingWorkers | kToTrainingWorkers);
  set->Add("tls_cert=FILE", &c->tls_cert,
           "the server's certificate and those between it and its authority (PEM): clients and the metrics page then "
           "use TLS. Read again when it changes, and on SIGHUP; empty = plaintext");
  set->Add("tls_key=FILE", &c->tls_key,
           "the key of --tls_cert (PEM, without a password), which others than owner and group may not read");
  set->Add(
      "tls_client_ca=FILE", &c->tls_client_ca,
      "with --tls_cert: authorities (PEM); only clients with a certificate of one of them may connect, also to the "
      "metrics page");
  set->Add(
      "api_keys_file=FILE", &c->api_keys_file,
      "file of clients' keys, by their hashes (`switchyard keys new` makes a key and its line), that only its owner "
      "may use: every call but health checks then needs a key (`authorization: Bearer KEY`) of a role that may make "
      "it. Read again on SIGHUP; empty = calls need no key");
  set->Add("max_num_seqs", &c->batching.max_num_seqs, "most sequences that run at once on each worker");
  set->Add("max_batched_tokens", &c->batching.max_batched_tokens, "most tokens that one step computes on each worker");
  set->Add("kv_cache_bytes", &c->kv_cache_bytes,
           "bytes of KV cache per worker, allocated at the start; 0 = a share of the memory that the weights leave, "
           "allocated as the cache fills")
      .Range(0, int64_t{1} << 50);
  set->Add("prefix_reuse", &c->batching.prefix_reuse,
           "keep KV blocks of finished requests and reuse them for prompts with the same beginning");
  set->Add("prefill_chunk", &c->batching.prefill_chunk,
           "most tokens of one prompt in one step; 0 = as many as --max_batched_tokens leaves room for");
  set->Add("block_size", &c->batching.block_size, "tokens per block of the KV cache");
  set->Add("min_rebalance_rows", &c->batching.min_rebalance_rows,
           "token rebalancing: fewest rows of a step that a worker with many rows hands to another one, which computes "
           "all but their attention; 0 = never, -1 = decided by the model and the workers' threads")
      .Alias("min_loan_rows");  // its name in the first 0.1.0 builds
  set->Add("max_in_flight", &c->batching.max_in_flight, "most steps under way at once (1 or 2)");
  set->Add("metrics_port", &c->metrics_port, "port of http://METRICS_HOST:PORT/metrics; 0 = any free one, -1 = none")
      .Range(-1, 65535);
  set->Add("metrics_host=ADDRESS", &c->metrics_host,
           "address of the metrics page and of local workers'; any but loopback requires --tls_cert or --insecure")
      .Mark(kToServingWorkers | kToTrainingWorkers);
}

void AddObserveFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Serving");
  set->Add("request_log=FILE", &c->request_log,
           "file to which a line (JSON) is appended for each finished or refused request: ids, tokens, times and "
           "outcome, no text; made with mode 0600, opened again on SIGHUP; - = standard output; empty = none");
  set->Add("otlp_endpoint=URL", &c->otlp_endpoint,
           "collector that gets requests as OpenTelemetry spans, over HTTP (http://HOST:4318; /v1/traces is appended); "
           "empty = nothing is traced");
  set->Add("otlp_sample_ratio", &c->otlp_sample_ratio,
           "part of the traces that begin at this server that is exported, [0, 1]; where a request's traceparent says "
           "whether it is sampled, that counts");
}

void AddWorkerFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Workers");
  set->Add("local_workers", &c->local_workers, "worker processes that this server starts on this machine").Range(0, 64);
  set->Add("workers", &c->workers,
           "workers in the serving group, including workers from elsewhere; 0 = --local_workers")
      .Range(0, 1024);
  set->Add("worker_port", &c->worker_port,
           "gRPC port that workers from elsewhere join at, open if --workers or --train_workers expects any or "
           "--join_token_file is given; 0 = two after --port")
      .Range(0, 65535);
  set->Add("worker_host=ADDRESS", &c->worker_host,
           "address of --worker_port; any but loopback requires --join_token_file, and --tls_cert or --insecure");
  set->Add(
      "tls_worker_ca=FILE", &c->tls_worker_ca,
      "with --tls_cert: authorities (PEM); only workers with a certificate of one of them may join from elsewhere");
  set->Add("device=NAME", &c->device, "device of local workers: cpu, or cuda (worker N uses GPU N)");
  set->Add("threads", &c->threads,
           "threads of each local worker; 0 = the cores that this process may use, divided by --local_workers")
      .Range(0, 1024)
      .Mark(kToServingWorkers);
  set->Add("join_token_file=FILE", &c->join_token_file,
           "file, which only its owner may use, with the token that workers from elsewhere must present; required if "
           "--workers includes such workers and --worker_host is not loopback (local workers use another token, drawn "
           "at each start)");
  set->Add("encrypt_links", &c->encrypt_links,
           "TLS 1.3 between the workers of a group, serving or training; not for GPUs on several machines, as NCCL "
           "cannot encrypt");
  set->Add("gpu_memory_fraction", &c->gpu_memory_fraction, kGpuMemoryFractionHelp).Mark(kToServingWorkers);
  set->Add("deterministic", &c->deterministic,
           "on GPUs: batch-invariant results: a sequence's do not depend on the rest of the batch; slower")
      .Mark(kToServingWorkers);
  set->Add("cuda_graphs", &c->cuda_graphs, "on GPUs: capture decode steps as CUDA graphs and replay them")
      .Mark(kToServingWorkers);
  set->Add("worker_metrics_port", &c->worker_metrics_port,
           "port of the first local worker's metrics page; the others use the next ports; 0 = any free ports "
           "(`switchyard status` lists them), -1 = no pages");
  set->Add("worker_binary=FILE", &c->worker_binary,
           "program of the local workers (default: switchyard-worker beside this one)");
}

// Adds the flags of expert placement.
void AddPlacementFlags(placement::PlacementSettings* placement, FlagSet* set) {
  set->BeginGroup("Experts");
  set->AddFunction(
      "placement=NAME", std::string(placement::NameOf(placement->mode)),
      [placement](absl::string_view name) {
        const absl::StatusOr<placement::PlacementMode> mode = placement::ParsePlacementMode(name);
        if (mode.ok()) placement->mode = *mode;
        return mode.ok() ? std::string() : absl::StrCat("must be one of ", placement::PlacementModeNames());
      },
      "expert placement: static = each expert is computed by the worker that has it; auto = the same, but in those "
      "steps in which trials have shown that it is faster, workers on one machine (CPUs) compute their own rows by "
      "each other's experts, and with --spare_slots workers anywhere do as with agreed; agreed = replicas follow the "
      "traffic, all workers decide alike after each gate; static+spare = static replicas, rows split evenly among "
      "them; lina = the policy of the paper Lina; no_estimate, no_finetune = lina without one of its parts. "
      "Answers do not change");
  set->Add(
      "spare_slots", &placement->spare_slots,
      "with --placement other than static: slots for expert replicas on each worker, per layer, filled from a file "
      "of all experts on each machine");
}

// Adds flags of how experts' rows travel.
void AddStepFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Experts");
  set->AddFunction(
      "combine=exact|added", "exact",
      [c](absl::string_view text) {
        if (text != "exact" && text != "added") return std::string("must be exact or added");
        c->add_outputs = text == "added";
        return std::string();
      },
      "with several workers on CPUs: exact = each expert's output of a row travels back, and answers are those of one "
      "worker; added = a worker first adds the outputs of its experts, so one row travels back: less to send over slow "
      "links, but other roundings, which depend on the number of workers (GetModelInfo names them)");
  set->AddFunction(
      "micro_batches=auto|N", "auto",
      [c](absl::string_view text) {
        int number = 0;
        if (text != "auto" && (!absl::SimpleAtoi(text, &number) || number < 1 || number > kMostMicroBatches))
          return absl::StrCat("must be auto or in [1, ", kMostMicroBatches, "]");
        c->micro_batches = number;
        return std::string();
      },
      "with several workers on CPUs, without --expert_memory (else ignored): into how many parts each cuts its rows of "
      "a step (a number: of steps with prompts), so "
      "that rows of one part travel while experts compute another's; auto = what measured links promise and trials "
      "show. "
      "Answers do not change");
}

// Adds the flags of load predictions.
void AddForecastFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Experts");
  set->Add(
         "profile=FILE", &c->profile,
         "with local workers: routing profile of this model, made by `switchyard profile`: load predictions work from "
         "the start, and an expert budget begins with the most popular experts; empty = workers learn it while serving")
      .Mark(kToServingWorkers);
  set->Add("profile_out=FILE", &c->profile_out,
           "with local workers: when they end, each writes what it learned of the model's routing to FILE.N, N being "
           "its number; `switchyard profile merge` merges these into a file for --profile. Makes steps slower, since "
           "probes are then fitted on every row; empty = none");
  set->Add("forecast=NAME", &c->forecast,
           "whether local workers predict the load of coming layers' experts: auto = for --placement=lina and "
           "no_finetune, or if --profile is given; always = also for an expert budget, and to see how right they are; "
           "never")
      .Mark(kToServingWorkers);
  set->Add("path_length", &c->path_length,
           "local workers predict a layer's experts from the choices in this many layers before (1 to 6; l of the "
           "paper Lina); --profile must have been made with the same `switchyard profile --path_length`")
      .Mark(kToServingWorkers);
}

void AddTrainingFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Training");
  set->Add("dataset_root=DIR", &c->dataset_root,
           "directory for data that users pack or train on; nothing outside of it is opened")
      .Mark(kToTrainingWorkers | kToServingThatTrain);
  set->Add("checkpoint_root=DIR", &c->checkpoint_root,
           "directory of the models that training jobs name, of their checkpoints and logs, and of the journal of jobs "
           "(jobs.sqlite); shared with all workers; nothing outside of it is opened")
      .Mark(kToTrainingWorkers | kToServingThatTrain);
  set->Add("local_train_workers", &c->local_train_workers,
           "worker processes that this server starts on this machine to train jobs; requires --dataset_root and "
           "--checkpoint_root")
      .Range(0, 64);
  set->Add("train_workers", &c->train_workers,
           "most training workers, including workers from elsewhere; 0 = --local_train_workers")
      .Range(0, 1024);
  set->Add("train_threads", &c->train_threads,
           "threads of each local training worker; 0 = the cores that this process may use, divided by "
           "--local_train_workers")
      .Range(0, 1024);
  set->Add("train_on_serving", &c->train_on_serving,
           "serving workers also train, while they have nothing to serve, jobs that ask for it (on_serving_workers); "
           "workers from elsewhere must run with --role=both; requires --dataset_root and --checkpoint_root");
  set->Add("train_share", &c->train_share,
           "with --train_on_serving: part of the time that training gets even while there is something to serve, [0, "
           "0.9]; steps then wait, 50 ms at a time. A step counts as one second at most");
  set->Add("train_yield_ms", &c->train_yield_ms,
           "with --train_on_serving: milliseconds within which training should stop when there is something to serve; "
           "its loops are cut to that. The metric switchyard_worker_train_late_yields_total counts longer ones")
      .Range(1, 10000);
  set->Add("train_offload_dir=DIR", &c->train_offload_dir,
           "directory on a disk where local training workers put masters and moments of experts that do not fit into "
           "memory (a job's `offload`); empty = they must fit")
      .Mark(kToTrainingWorkers);
}

void AddLimitFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Limits");
  set->Add("max_queue", &c->batching.max_queue, "most waiting requests; further ones get RESOURCE_EXHAUSTED at once");
  set->Add("max_streams", &c->max_streams, "most open Generate calls; further ones get RESOURCE_EXHAUSTED at once")
      .Range(1, 100000);
  set->Add("max_streams_per_client", &c->max_streams_per_client,
           "most open Generate calls of one client (with --api_keys_file one key, else one address); 0 = half of "
           "--max_streams, "
           "of addresses on loopback all of them");
  set->Add("max_connections", &c->max_connections,
           "most open connections; further ones are closed at once. Local workers do not count, and further places, "
           "one for each worker from elsewhere, are kept for addresses from which workers have joined")
      .Range(1, 100000);
  set->Add("max_connections_per_client", &c->max_connections_per_client,
           "most open connections of one client (one address); 0 = half of --max_connections");
  set->Add("max_connection_bytes", &c->max_connection_bytes,
           "most bytes that unfinished calls of all connections hold; less if memory is short. Beyond half of it those "
           "connections that hold most are not read, and after 1.5 s without progress closed")
      .Range(int64_t{8} << 20, int64_t{1} << 40);
  set->Add("max_waiting_text_bytes", &c->max_waiting_text_bytes,
           "most bytes of calls whose text waits to be parsed and tokenized; half of it for one client (on loopback: "
           "one connection). Further calls get RESOURCE_EXHAUSTED at once")
      .Range(4 * c->max_request_bytes, int64_t{1} << 40);
}

void AddTimeLimitFlags(ServerConfig* c, FlagSet* set) {
  set->BeginGroup("Limits");
  set->Add("default_deadline", &c->default_deadline,
           "time limit of a request without a deadline; at most --max_deadline")
      .Range(kShortest, kLongest);
  set->Add("max_deadline", &c->max_deadline, "longest deadline that a request may have").Range(kShortest, kLongest);
  set->Add("request_message_timeout", &c->request_message_timeout,
           "how long a Generate call may wait for its request message")
      .Range(kShortest, kLongest);
  set->Add("slow_client_timeout", &c->slow_client_timeout, "how long a client may leave its stream unread")
      .Range(kShortest, kLongest);
  set->Add("drain_timeout", &c->drain_timeout,
           "how long running requests may go on after SIGTERM or Ctrl-C; a second signal ends them at once")
      .RangeOrZero(kShortest, kLongest);
  set->AddFunction(
      "on_worker_loss=continue|fail", "continue",
      [c](absl::string_view text) {
        if (text != "continue" && text != "fail") return std::string("must be continue or fail");
        c->batching.max_losses = text == "fail" ? 0 : batching::BatchingPolicy().max_losses;
        return std::string();
      },
      "what becomes of running requests when a worker is lost: continue = they wait for the next group, what was "
      "emitted is computed again, and their streams go on (through at most 100 losses; one whose workers crash "
      "three times in a row, at last without other suspects, ends); fail = they end with UNAVAILABLE");
  set->Add("start_timeout", &c->start_timeout,
           "how long the forming of a group may go without any worker registering, loading or capturing graphs; then "
           "the server ends, or, after the first group, requests are refused until a worker makes progress")
      .Range(kShortest, kLongest);
  set->Add("step_timeout", &c->step_timeout,
           "time limit of a step, to which --row_timeout adds for each of its tokens; a step that takes longer ends "
           "the group")
      .Range(kShortest, kLongest);
  set->Add("row_timeout", &c->row_timeout,
           "added to --step_timeout for each token of a step; less once steps were measured")
      .RangeOrZero(kShortest, kLongest);
}

}  // namespace

FlagSet FlagsOfServer(ServerConfig* config) {
  FlagSet flags;
  for (const char* title : {"Model", "Serving", "Workers", "Experts", "Training", "Limits", "Debugging"}) {
    flags.BeginGroup(title);
  }
  flags.Advise(AdviceForUsersOfVllm());
  AddModelFlags(config, &flags);
  AddServingFlags(config, &flags);
  AddObserveFlags(config, &flags);
  AddWorkerFlags(config, &flags);
  AddPlacementFlags(&config->placement, &flags);
  AddStepFlags(config, &flags);
  offload::AddExpertBudgetFlags(&config->experts, "each local worker", kToServingWorkers, &flags);
  AddForecastFlags(config, &flags);
  AddTrainingFlags(config, &flags);
  AddLimitFlags(config, &flags);
  AddTimeLimitFlags(config, &flags);
  flags.BeginGroup("Debugging");
  flags.Add("preempt_every_step", &config->batching.preempt_every_step,
            "for verification: every step preempts a sequence; slow, does not change answers");
  return flags;
}

std::vector<std::string> FlagsToWorkers(const ServerConfig& config, uint32_t marks) {
  ServerConfig copy = config;
  return FlagsOfServer(&copy).ArgumentsOf(marks);
}

}  // namespace switchyard::server
