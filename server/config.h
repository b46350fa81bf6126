// The server's configuration: filled from flags (server_flags.h), validated once, constant afterwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/offload/expert_budget.h"
#include "scheduler/placement/placement_settings.h"

namespace switchyard::server {

inline constexpr int kMostMicroBatches = 8;

struct ServerConfig {
  std::string version = "unknown";  // of this program, for clients
  std::string model;                // directory of a HuggingFace checkpoint, or a GGUF file
  std::string adapter;              // directory of a LoRA adapter that workers merge into the model; "" = none
  std::string adapters;             // NAME=DIR,NAME=DIR: those that requests choose from (adapter_list.h); "" = none
  std::string served_model_name;    // default: NameOfModel
  std::string tokenizer;            // file; default: the model's, if it has one
  std::string chat_template;        // file; default: the model's
  // How the model writes tool calls and reasoning: a parser's name, "none", or "auto" = by the chat template.
  std::string tool_call_parser = "auto", reasoning_parser = "auto";

  std::string host = "127.0.0.1";
  int port = 50051;                        // of users; 0 = any free one
  int http_port = 0;                       // of users, on `host`; 0 = 8000, or any free one if that is taken; -1 = none
  std::string http_origins;                // of pages whose scripts may call, separated by commas; "*" = all
  std::string http_hosts;                  // further names of the HTTP port where it needs no key; "*" = any
  std::string admin_host = "127.0.0.1";    // of jobs and administration
  int admin_port = 0;                      // 0 = the one after `port` (any free one if that is 0), -1 = none
  std::string worker_host = "127.0.0.1";   // of workers from elsewhere, if any are expected
  int worker_port = 0;                     // 0 = two after `port` (any free one if that is 0)
  std::string metrics_host = "127.0.0.1";  // separate from `host`, as the page is not for every client
  int metrics_port = 9464;                 // 0 = any free one, -1 = none
  int worker_metrics_port = 0;             // of local worker 0; worker n uses this + n; 0 = any free ones, -1 = none
  std::string api_keys_file;               // keys of the clients; empty: calls need none
  bool insecure = false;                   // plaintext on another address than loopback
  std::string tls_cert, tls_key;           // PEM files; empty: plaintext
  std::string tls_client_ca;               // PEM file: authorities whose clients alone may connect; empty: any may
  std::string tls_worker_ca;               // likewise of workers from elsewhere

  std::string request_log;       // file of a line for each finished request; "-": standard output; empty: none
  std::string otlp_endpoint;     // of a collector of traces, http://HOST:4318; empty: nothing is traced
  double otlp_sample_ratio = 1;  // of traces that begin here, [0, 1]

  int local_workers = 1;      // started by this server on this machine
  int workers = 0;            // that make a group; 0 = local_workers
  std::string worker_binary;  // default: switchyard-worker beside this program
  std::string join_token_file;
  std::string join_token;      // workers from elsewhere must present it; drawn at the start if none are expected
  std::string local_token;     // drawn at the start; only local workers have it
  bool encrypt_links = false;  // TLS between workers
  std::string dtype = "auto";
  std::string quantization = "auto";
  std::string kv_cache_dtype = "auto";
  int threads = 0;                   // per local worker; 0 = usable cores / local workers
  std::string device = "cpu";        // of local workers; "cuda": worker i uses GPU i
  double gpu_memory_fraction = 0.9;  // of a GPU's memory that may be in use: kGpuMemoryFractionHelp
  bool deterministic = false;        // on GPUs: a sequence's results do not depend on the rest of the batch
  bool cuda_graphs = true;
  std::string load_format = "auto";        // "dummy": random weights of the config's shapes
  offload::ExpertBudgetOptions experts;    // of local workers
  std::string profile;                     // of local workers: file of a profiling run; empty: none
  std::string profile_out;                 // of local workers: file for what they learn; empty: none
  std::string forecast = "auto";           // of local workers: auto, always or never
  int path_length = 3;                     // of local workers: layers of the paths that predict, [1, kMaxPathLength]
  placement::PlacementSettings placement;  // of all workers
  bool add_outputs = false;                // a worker adds its outputs of a row before they travel
  int micro_batches = 0;                   // that rows of steps with prompts are cut into; 0 = by trial

  // Training jobs (server/jobs).
  int local_train_workers = 0;    // started by this server on this machine
  int train_workers = 0;          // at most, those from elsewhere included; 0 = local_train_workers
  int train_threads = 0;          // per local training worker; 0 = usable cores / local training workers
  bool train_on_serving = false;  // serving workers also train, in time slices
  bool only_trains = false;       // set by Finish: there is no model, and so no serving worker
  int train_yield_ms = 50;        // in which their training must stop when there is something to serve
  double train_share = 0;         // training's part of the time in which there is something to serve; [0, 0.9]
  std::string dataset_root;       // users name data beneath it; empty: none
  std::string train_offload_dir;  // of local training workers; empty: nothing is offloaded
  std::string checkpoint_root;    // users name models beneath it; it holds the journal and jobs' folders

  int64_t kv_cache_bytes = 0;                                // per worker; 0 = the worker decides
  batching::BatchingPolicy batching = {.max_model_len = 0};  // 0 = the model's context

  int max_streams = 512;               // open Generate calls
  int max_streams_per_client = 0;      // of one address; 0 = half of max_streams, all on loopback
  int max_connections = 512;           // besides those of local workers and those kept for workers from elsewhere
  int max_connections_per_client = 0;  // of one address; 0 = half of max_connections
  int64_t max_connection_bytes = int64_t{96} << 20;  // that unfinished calls of all connections hold
  int64_t max_request_bytes = 4 << 20;
  int64_t max_waiting_text_bytes = 48 << 20;  // of calls whose text waits to be read; half of it for one client
  int64_t max_prompt_bytes = 4 << 20;
  absl::Duration default_deadline = absl::Seconds(300);        // of requests without one
  absl::Duration max_deadline = absl::Hours(1);                // longest that a request may ask for
  absl::Duration request_message_timeout = absl::Seconds(30);  // for a Generate call's message
  absl::Duration slow_client_timeout = absl::Seconds(30);
  absl::Duration unread_end_timeout = absl::Seconds(30);  // then a stream whose client does not read its end is reset
  absl::Duration drain_timeout = absl::Seconds(25);       // after SIGTERM
  absl::Duration start_timeout = absl::Minutes(10);       // for a group to form, without progress
  // A step that takes longer than step_timeout + its rows x row_timeout ends the group; see WorkerGroup::Options.
  absl::Duration step_timeout = absl::Seconds(120);
  absl::Duration row_timeout = absl::Seconds(1);

  // Checks the configuration and fills in derived fields (names, workers).  InvalidArgument lists every problem, one a
  // line.
  absl::Status Finish();
  // Whether workers may join that this server does not start, so that their port is open.
  bool ExpectsWorkersFromElsewhere() const {
    return workers > local_workers || train_workers > local_train_workers || !join_token_file.empty();
  }
  // Most calls, of all kinds, that one connection may have open.
  int StreamsPerConnection() const { return 2 * max_streams_per_client + 64; }
  // Most calls that one connection may reset before they are answered, within ten seconds.
  int MostResets() const { return std::max(2000, 2 * StreamsPerConnection()); }
};

// Returns a model's name by its path: the last part, or that of the real path if it is "." or "..".  A snapshot in the
// HuggingFace hub's cache (…/models--ORG--NAME/snapshots/HASH) is named ORG/NAME; a GGUF file NAME.gguf, or
// NAME-00001-of-00003.gguf, is named NAME.
std::string NameOfModel(const std::string& path);

}  // namespace switchyard::server
