// Every metric of the server, in one table (metrics.cc): name, type, help, labels, buckets.
//
// Names, labels and buckets are vLLM's behind our prefix, so that dashboards carry over (README.md says where they
// differ); labels come from closed sets only.  Thread-safe.  Durations are seconds of one monotonic clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "scheduler/batching/event.h"
#include "scheduler/popularity/path_profile.h"

namespace switchyard::server {

// Registers a family of metrics; `builder` is prometheus::BuildCounter() or one of its kind.
template <class Builder>
auto& NewFamily(Builder builder, const char* name, const char* help, prometheus::Registry* registry) {
  return builder.Name(name).Help(help).Register(*registry);
}

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);

  // Serves /metrics on host:port (0 = any free one); returns the port, or -1 when the address is taken.
  int Expose(const std::string& host, int port);
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }
  // The page, as Expose serves it.
  std::string Page() const;

  // Registers the histograms of tokens, whose buckets end at the model's context; later calls do nothing.
  void SetMaxModelLen(int32_t max_model_len);
  // Describes the group's KV cache, replacing the last group's.  num_blocks: of all workers together.
  void SetCacheConfig(int32_t block_size, int64_t num_blocks, const std::string& dtype, bool prefix_reuse);

  // --- requests ---
  // Counts sequences that ended well.  REQUIRES: kStop, kLength or kAbort.
  prometheus::Counter& request_success(batching::FinishReason reason);
  prometheus::Counter& request_error(absl::StatusCode code);
  // Count calls that were refused for their key (reason: a v1::ErrorReason's name), and what keys have used.  Names of
  // keys are those of the keys file, so there are not many.
  prometheus::Counter& call_refused(const std::string& reason);
  // Counts connections that were ended for breaking a limit (a FrontLimit's name).
  prometheus::Counter& connection_ended(const std::string& limit);
  // Counts answers over HTTP, by path (of a closed set) and status.
  prometheus::Counter& http_request(const std::string& path, int status);
  // Counts spans for --otlp_endpoint, by result (of a closed set).
  prometheus::Counter& otlp_spans(const std::string& result);
  // Counts answers over HTTP that ended before their end, by reason (slow_reader, client_gone).
  prometheus::Counter& http_answer_cut(const std::string& reason);
  // Registers the counters of requests by adapter; no adapters, or a later call: does nothing.
  void SetAdapters(const std::vector<std::string>& names);
  // adapter: from 1, of SetAdapters' names.
  prometheus::Counter& adapter_requests(int32_t adapter) {
    return *adapter_requests_[static_cast<size_t>(adapter) - 1];
  }
  prometheus::Counter& key_requests(const std::string& key);
  prometheus::Counter& key_tokens(const std::string& key);
  prometheus::Histogram* time_to_first_token = nullptr;
  prometheus::Histogram* inter_token_latency = nullptr;
  prometheus::Histogram* e2e_request_latency = nullptr;
  prometheus::Histogram* request_queue_time = nullptr;
  prometheus::Histogram* request_prefill_time = nullptr;
  prometheus::Histogram* request_decode_time = nullptr;
  prometheus::Histogram* request_inference_time = nullptr;
  prometheus::Histogram* request_time_per_output_token = nullptr;
  prometheus::Histogram* request_params_n = nullptr;
  // These four are null before SetMaxModelLen; no request is accepted before the model is known.
  prometheus::Histogram* request_prompt_tokens = nullptr;
  prometheus::Histogram* request_generation_tokens = nullptr;
  prometheus::Histogram* request_max_num_generation_tokens = nullptr;
  prometheus::Histogram* request_params_max_tokens = nullptr;
  prometheus::Counter* prompt_tokens = nullptr;
  prometheus::Counter* generation_tokens = nullptr;
  prometheus::Counter* tokenize_seconds = nullptr;
  prometheus::Counter* constraint_seconds = nullptr;
  prometheus::Counter* constraint_masks = nullptr;
  prometheus::Histogram* constraint_mask_seconds = nullptr;
  prometheus::Histogram* constraint_wait_seconds = nullptr;
  // --- scheduler ---
  prometheus::Gauge* requests_running = nullptr;
  prometheus::Gauge* requests_waiting = nullptr;
  prometheus::Gauge* waiting_tokens = nullptr;
  prometheus::Gauge* kv_cache_usage = nullptr;
  prometheus::Counter* preemptions = nullptr;
  prometheus::Counter* outlived_losses = nullptr;
  prometheus::Counter* rows_given = nullptr;
  prometheus::Counter* prefix_queries = nullptr;
  prometheus::Counter* prefix_hits = nullptr;
  prometheus::Counter* rejected_for_requests = nullptr;  // the queue was full: --max_queue
  prometheus::Counter* rejected_for_tokens = nullptr;    // the same: max_queued_tokens
  prometheus::Counter* corrupted_requests = nullptr;
  // --- steps ---
  prometheus::Histogram* iteration_tokens = nullptr;
  prometheus::Histogram* step_seconds = nullptr;      // sent → all ranks answered
  prometheus::Histogram* publish_seconds = nullptr;   // results → streams
  prometheus::Histogram* expert_seconds = nullptr;    // of a step, the slowest rank
  prometheus::Histogram* exchange_seconds = nullptr;  // of a step, the slowest rank, waiting included
  // Of a step, on the slowest rank: the gather of counts for expert placement, and the decisions that follow.
  prometheus::Histogram* gather_seconds = nullptr;
  prometheus::Histogram* decide_seconds = nullptr;
  prometheus::Counter* fine_tuned_layers = nullptr;
  // Mean over maximum of the ranks' expert rows, by phase (steps with prompts, and others).
  prometheus::Histogram& moe_balancedness(popularity::Phase phase) {
    return *balancedness_[static_cast<size_t>(phase)];
  }
  prometheus::Counter* moe_tokens_exchanged = nullptr;
  // --- training on the workers ---
  prometheus::Counter* train_slices = nullptr;
  prometheus::Counter* train_slice_seconds = nullptr;
  // --- expert placement ---
  prometheus::Gauge* placement_gained_seconds = nullptr;
  prometheus::Counter* deciding_steps = nullptr;
  prometheus::Gauge* micro_batches_gained_seconds = nullptr;
  prometheus::Counter* cut_steps = nullptr;
  // --- the group ---
  prometheus::Gauge* link_start_seconds = nullptr;
  prometheus::Gauge* link_bytes_per_second = nullptr;
  prometheus::Gauge* start_time = nullptr;
  prometheus::Gauge* ready = nullptr;
  prometheus::Gauge* group_epoch = nullptr;
  prometheus::Gauge* workers = nullptr;
  prometheus::Counter* groups_lost = nullptr;
  prometheus::Counter* workers_fenced = nullptr;
  prometheus::Counter* local_worker_restarts = nullptr;
  prometheus::Gauge* open_streams = nullptr;
  prometheus::Gauge* open_connections = nullptr;
  prometheus::Counter* connections_refused = nullptr;
  prometheus::Gauge* waiting_clients = nullptr;
  prometheus::Gauge* unfinished_call_bytes = nullptr;
  prometheus::Counter* handshakes_failed = nullptr;
  prometheus::Gauge* waiting_text_bytes = nullptr;
  prometheus::Counter* texts_refused = nullptr;
  prometheus::Counter* request_log_dropped = nullptr;
  // Seconds since 1970; without TLS nobody calls it, and there is no such metric.  Not thread-safe.
  prometheus::Gauge& certificate_expiry();

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  const prometheus::Labels labels_;            // of every metric
  std::vector<prometheus::Counter*> success_;  // [kNumFinishReasons], null where the end was an error
  std::vector<prometheus::Counter*> adapter_requests_;
  prometheus::Histogram* balancedness_[2] = {};  // by Phase
  prometheus::Family<prometheus::Counter>* errors_ = nullptr;
  prometheus::Family<prometheus::Counter>* refused_calls_ = nullptr;
  prometheus::Family<prometheus::Counter>* ended_connections_ = nullptr;
  prometheus::Family<prometheus::Counter>* http_requests_ = nullptr;
  prometheus::Family<prometheus::Counter>* otlp_spans_ = nullptr;
  prometheus::Family<prometheus::Counter>* http_cuts_ = nullptr;
  prometheus::Family<prometheus::Counter>* key_requests_ = nullptr;
  prometheus::Family<prometheus::Counter>* key_tokens_ = nullptr;
  prometheus::Family<prometheus::Gauge>* cache_configs_ = nullptr;
  prometheus::Gauge* cache_config_ = nullptr;
  prometheus::Gauge* certificate_expiry_ = nullptr;
};

}  // namespace switchyard::server
