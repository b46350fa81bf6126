#include "server/metrics/metrics.h"

#include <exception>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "prometheus/text_serializer.h"
#include "proto/support/host_port.h"
#include "scheduler/base/check.h"

namespace switchyard::server {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// vLLM's buckets, seconds.
const Buckets kTtft = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kInterToken = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Buckets kLatency = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {};  // 1, 2, 5, 10 … up to the model's context, made when that is known
const Buckets kIteration = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kStep = {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};
const Buckets kChoices = {1, 2, 5, 10, 20};
const Buckets kRatio = {.1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1};

using M = ServerMetrics;
using CounterMember = prometheus::Counter* M::*;
using GaugeMember = prometheus::Gauge* M::*;
using HistogramMember = prometheus::Histogram* M::*;

struct Row {
  const char* name;
  const char* help;
  std::variant<CounterMember, GaugeMember, HistogramMember> member;
  const Buckets* buckets = nullptr;  // of a histogram
};
const Row kTable[] = {
    {"switchyard_time_to_first_token_seconds", "From a request's arrival to its first token.", &M::time_to_first_token,
     &kTtft},
    {"switchyard_inter_token_latency_seconds", "Between successive tokens of a sequence.", &M::inter_token_latency,
     &kInterToken},
    {"switchyard_e2e_request_latency_seconds", "From a request's arrival to the end of its last choice.",
     &M::e2e_request_latency, &kLatency},
    {"switchyard_request_queue_time_seconds", "From queueing to the first step of a sequence.", &M::request_queue_time,
     &kLatency},
    {"switchyard_request_prefill_time_seconds", "From that step to the first token.", &M::request_prefill_time,
     &kLatency},
    {"switchyard_request_decode_time_seconds", "From the first token to the last.", &M::request_decode_time, &kLatency},
    {"switchyard_request_time_per_output_token_seconds", "Mean time between the tokens of a choice.",
     &M::request_time_per_output_token, &kInterToken},
    {"switchyard_request_inference_time_seconds", "From that step to the last token.", &M::request_inference_time,
     &kLatency},
    {"switchyard_request_prompt_tokens", "Prompt tokens of a request.", &M::request_prompt_tokens, &kTokens},
    {"switchyard_request_generation_tokens", "Output tokens of a choice.", &M::request_generation_tokens, &kTokens},
    {"switchyard_request_max_num_generation_tokens", "Output tokens of a request's longest choice.",
     &M::request_max_num_generation_tokens, &kTokens},
    {"switchyard_request_params_n", "Choices asked for by a request.", &M::request_params_n, &kChoices},
    {"switchyard_request_params_max_tokens", "max_tokens of a request.", &M::request_params_max_tokens, &kTokens},
    {"switchyard_prompt_tokens_total", "Prompt tokens of accepted requests.", &M::prompt_tokens},
    {"switchyard_generation_tokens_total", "Output tokens made.", &M::generation_tokens},
    {"switchyard_tokenize_seconds_total", "Time spent rendering chat templates and tokenizing.", &M::tokenize_seconds},
    {"switchyard_constraint_compile_seconds_total", "Time spent compiling constraints of outputs.",
     &M::constraint_seconds},
    {"switchyard_constraint_masks_total", "Masks of tokens that were made for constraints; others were kept.",
     &M::constraint_masks},
    {"switchyard_constraint_mask_seconds", "Making a mask that takes too long for the engine's thread.",
     &M::constraint_mask_seconds, &kStep},
    {"switchyard_constraint_wait_seconds", "Waiting for a step's masks, on the slowest rank.",
     &M::constraint_wait_seconds, &kStep},
    {"switchyard_num_requests_running", "Sequences that are running.", &M::requests_running},
    {"switchyard_num_requests_waiting", "Sequences in the queue.", &M::requests_waiting},
    {"switchyard_num_waiting_tokens", "Tokens of the sequences in the queue.", &M::waiting_tokens},
    {"switchyard_kv_cache_usage_perc", "Used part of the KV cache's blocks, 0 to 1.", &M::kv_cache_usage},
    {"switchyard_num_outlived_losses_total",
     "Sequences sent back to the queue because their workers were lost, to go on with the next (--on_worker_loss).",
     &M::outlived_losses},
    {"switchyard_num_preemptions_total", "Sequences sent back to the queue because blocks ran out.", &M::preemptions},
    {"switchyard_prefix_cache_queries_total", "Tokens looked up in the prefix cache.", &M::prefix_queries},
    {"switchyard_prefix_cache_hits_total", "Tokens found in the prefix cache.", &M::prefix_hits},
    {"switchyard_corrupted_requests_total", "Choices that ended because a logit was NaN or infinite.",
     &M::corrupted_requests},
    {"switchyard_iteration_tokens", "Rows of a step, over all ranks.", &M::iteration_tokens, &kIteration},
    {"switchyard_step_seconds", "From sending a step's plan to the last rank's result.", &M::step_seconds, &kStep},
    {"switchyard_publish_seconds", "Committing a step's result and filling the streams.", &M::publish_seconds, &kStep},
    {"switchyard_moe_expert_seconds", "Expert layers of a step, on the slowest rank.", &M::expert_seconds, &kStep},
    {"switchyard_moe_exchange_seconds", "Exchanges of a step on the slowest rank, waiting included.",
     &M::exchange_seconds, &kStep},
    {"switchyard_moe_gather_seconds", "Gathers of what a step's experts are placed from, on the slowest rank.",
     &M::gather_seconds, &kStep},
    {"switchyard_moe_decide_seconds", "Where a step's rows and experts go, beside the gathers, slowest rank.",
     &M::decide_seconds, &kStep},
    {"switchyard_moe_fine_tuned_layers_total", "Layers of steps whose experts moved after their gate.",
     &M::fine_tuned_layers},
    {"switchyard_rows_lent_total", "Rows that one worker computed for another, all but their attention.",
     &M::rows_given},
    {"switchyard_moe_tokens_exchanged_total", "Expert rows sent to another rank.", &M::moe_tokens_exchanged},
    {"switchyard_placement_gained_seconds",
     "What this group's steps would have taken longer had all gone static's way (--placement=auto); below 0 = lost.",
     &M::placement_gained_seconds},
    {"switchyard_micro_batches_gained_seconds",
     "What cutting steps' rows into micro-batches has gained since the group formed (--micro_batches=auto).",
     &M::micro_batches_gained_seconds},
    {"switchyard_cut_steps_total", "Steps whose rows were cut into micro-batches (--micro_batches).", &M::cut_steps},
    {"switchyard_deciding_steps_total", "Steps that went another way than static (--placement=auto).",
     &M::deciding_steps},
    {"switchyard_link_start_seconds",
     "What an all-to-all of the group takes without bytes, as measured when it formed; 0 = not measured.",
     &M::link_start_seconds},
    {"switchyard_link_bytes_per_second", "What a worker then sends a second in an all-to-all; 0 = not measured.",
     &M::link_bytes_per_second},
    {"process_start_time_seconds", "When the server started, in seconds since 1970.", &M::start_time},
    {"switchyard_ready", "1 when requests are served.", &M::ready},
    {"switchyard_group_epoch", "Epoch of the workers' group.", &M::group_epoch},
    {"switchyard_workers", "Registered workers.", &M::workers},
    {"switchyard_groups_lost_total", "Times that the serving group was lost.", &M::groups_lost},
    {"switchyard_workers_fenced_total", "Workers fenced for silence.", &M::workers_fenced},
    {"switchyard_local_worker_restarts_total", "Starts of local workers that serve, instead of one that ended.",
     &M::local_worker_restarts},
    {"switchyard_open_streams", "Open Generate calls.", &M::open_streams},
    {"switchyard_open_connections", "Connections to the gRPC port, the workers' among them.", &M::open_connections},
    {"switchyard_train_slices_total", "Slices of the serving workers' time that training got.", &M::train_slices},
    {"switchyard_train_slice_seconds_total", "Seconds in which training could run on serving workers.",
     &M::train_slice_seconds},
    {"switchyard_connections_refused_total", "Connections closed at once because there were too many.",
     &M::connections_refused},
    {"switchyard_waiting_clients", "Clients that may not connect for a while, as their connections broke a limit.",
     &M::waiting_clients},
    {"switchyard_unfinished_call_bytes", "Bytes that unfinished calls of clients hold (--max_connection_bytes).",
     &M::unfinished_call_bytes},
    {"switchyard_tls_handshakes_failed_total", "Connections without a good TLS handshake.", &M::handshakes_failed},
    {"switchyard_waiting_text_bytes", "Bytes of calls that wait for their text to be read.", &M::waiting_text_bytes},
    {"switchyard_texts_refused_total", "Calls refused for want of room or memory to read their text.",
     &M::texts_refused},
    {"switchyard_request_log_dropped_total", "Requests without a line in --request_log, for want of room or an error.",
     &M::request_log_dropped},
};

// vLLM's series for tokens: 1, 2, 5, 10 … while not above `most`.
Buckets OneTwoFive(int32_t most) {
  Buckets buckets;
  for (double decade = 1;; decade *= 10) {
    for (double digit : {1, 2, 5}) {
      if (digit * decade > most) return buckets;
      buckets.push_back(digit * decade);
    }
  }
}

constexpr batching::FinishReason kGoodEnds[] = {batching::FinishReason::kStop, batching::FinishReason::kLength,
                                                batching::FinishReason::kAbort};

// Errors that are not the client's, as alerts count them.
constexpr absl::StatusCode kServerFaults[] = {absl::StatusCode::kUnknown, absl::StatusCode::kDeadlineExceeded,
                                              absl::StatusCode::kInternal, absl::StatusCode::kUnavailable,
                                              absl::StatusCode::kDataLoss};

prometheus::Labels With(prometheus::Labels labels, const prometheus::Labels& more) {
  labels.insert(more.begin(), more.end());
  return labels;
}

}  // namespace

ServerMetrics::ServerMetrics(const std::string& model_name)
    : registry_(std::make_shared<prometheus::Registry>()), labels_({{"model_name", model_name}, {"engine", "0"}}) {
  for (const Row& row : kTable) {
    if (const auto* counter = std::get_if<CounterMember>(&row.member)) {
      this->** counter = &NewFamily(prometheus::BuildCounter(), row.name, row.help, registry_.get()).Add(labels_);
    } else if (const auto* gauge = std::get_if<GaugeMember>(&row.member)) {
      this->** gauge = &NewFamily(prometheus::BuildGauge(), row.name, row.help, registry_.get()).Add(labels_);
    } else if (row.buckets != &kTokens) {
      this->*std::get<HistogramMember>(row.member) =
          &NewFamily(prometheus::BuildHistogram(), row.name, row.help, registry_.get()).Add(labels_, *row.buckets);
    }
  }
  auto& success = NewFamily(prometheus::BuildCounter(), "switchyard_request_success_total",
                            "Sequences that ended without an error, by reason; abort: by Abort or the client's end.",
                            registry_.get());
  success_.resize(batching::kNumFinishReasons);
  for (batching::FinishReason reason : kGoodEnds) {
    success_[static_cast<int>(reason)] =
        &success.Add(With(labels_, {{"finished_reason", std::string(batching::FinishReasonName(reason))}}));
  }
  auto& balancedness = NewFamily(
      prometheus::BuildHistogram(), "switchyard_moe_balancedness_ratio",
      "Mean over max of the expert rows per rank, of a step's layers; prefill: a step with prompts.", registry_.get());
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    balancedness_[static_cast<size_t>(phase)] =
        &balancedness.Add(With(labels_, {{"phase", std::string(NameOf(phase))}}), kRatio);
  }
  auto& rejections = NewFamily(prometheus::BuildCounter(), "switchyard_admission_rejections_total",
                               "Requests refused because the queue was full, by the limit.", registry_.get());
  rejected_for_requests = &rejections.Add(With(labels_, {{"reason", "max_queue"}}));
  rejected_for_tokens = &rejections.Add(With(labels_, {{"reason", "max_queued_tokens"}}));
  errors_ = &NewFamily(prometheus::BuildCounter(), "switchyard_request_errors_total",
                       "Calls that ended with an error, by gRPC code.", registry_.get());
  // These are there from the start, as a rate does not see a counter's first value.
  for (const absl::StatusCode code : kServerFaults) request_error(code);
  start_time->Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  refused_calls_ = &NewFamily(prometheus::BuildCounter(), "switchyard_calls_refused_total",
                              "Calls refused for their key (--api_keys_file), by reason.", registry_.get());
  for (const char* reason : {"NO_KEY", "WRONG_ROLE", "QUOTA", "DISK_QUOTA"}) call_refused(reason);
  ended_connections_ = &NewFamily(prometheus::BuildCounter(), "switchyard_connections_ended_total",
                                  "Connections ended because their client broke a limit, by limit.", registry_.get());
  http_requests_ = &NewFamily(prometheus::BuildCounter(), "switchyard_http_requests_total",
                              "Answers over HTTP, by path and status.", registry_.get());
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) http_request(path, 200);
  otlp_spans_ =
      &NewFamily(prometheus::BuildCounter(), "switchyard_otlp_spans_total",
                 "Spans for --otlp_endpoint, by result; dropped: for want of room; failed: it did not take them.",
                 registry_.get());
  for (const char* result : {"sent", "dropped", "failed"}) otlp_spans(result);
  http_cuts_ = &NewFamily(prometheus::BuildCounter(), "switchyard_http_answers_cut_total",
                          "Answers over HTTP that ended before their end, by reason.", registry_.get());
  for (const char* reason : {"slow_reader", "client_gone"}) http_answer_cut(reason);
  key_requests_ = &NewFamily(prometheus::BuildCounter(), "switchyard_key_requests_total",
                             "Generate requests that the quota of their API key admitted, by key.", registry_.get());
  key_tokens_ = &NewFamily(prometheus::BuildCounter(), "switchyard_key_tokens_total",
                           "Tokens that count for a key's quota: prompts, and answers sent.", registry_.get());
  cache_configs_ =
      &NewFamily(prometheus::BuildGauge(), "switchyard_cache_config_info",
                 "The KV cache of the group; blocks are those of all workers, whatever their device.", registry_.get());
}

void ServerMetrics::SetMaxModelLen(int32_t max_model_len) {
  if (request_prompt_tokens != nullptr) return;
  const Buckets buckets = OneTwoFive(max_model_len);
  for (const Row& row : kTable) {
    if (row.buckets != &kTokens) continue;
    this->*std::get<HistogramMember>(row.member) =
        &NewFamily(prometheus::BuildHistogram(), row.name, row.help, registry_.get()).Add(labels_, buckets);
  }
}

void ServerMetrics::SetCacheConfig(int32_t block_size, int64_t num_blocks, const std::string& dtype,
                                   bool prefix_reuse) {
  if (cache_config_ != nullptr) cache_configs_->Remove(cache_config_);
  const prometheus::Labels what = {{"block_size", absl::StrCat(block_size)},
                                   {"num_gpu_blocks", absl::StrCat(num_blocks)},
                                   {"cache_dtype", dtype},
                                   {"enable_prefix_caching", prefix_reuse ? "True" : "False"}};
  cache_config_ = &cache_configs_->Add(With(labels_, what));
  cache_config_->Set(1);
}

void ServerMetrics::SetAdapters(const std::vector<std::string>& names) {
  if (names.empty() || !adapter_requests_.empty()) return;
  auto& requests = NewFamily(prometheus::BuildCounter(), "switchyard_adapter_requests_total",
                             "Accepted requests for a LoRA adapter (--adapters), by its name.", registry_.get());
  for (const std::string& name : names) adapter_requests_.push_back(&requests.Add(With(labels_, {{"adapter", name}})));
}

prometheus::Counter& ServerMetrics::request_success(batching::FinishReason reason) {
  prometheus::Counter* counter = success_[static_cast<int>(reason)];
  SY_CHECK(counter != nullptr);
  return *counter;
}

prometheus::Counter& ServerMetrics::request_error(absl::StatusCode code) {
  return errors_->Add(With(labels_, {{"code", absl::StatusCodeToString(code)}}));
}

prometheus::Counter& ServerMetrics::call_refused(const std::string& reason) {
  return refused_calls_->Add(With(labels_, {{"reason", reason}}));
}

prometheus::Counter& ServerMetrics::connection_ended(const std::string& limit) {
  return ended_connections_->Add(With(labels_, {{"limit", limit}}));
}

prometheus::Gauge& ServerMetrics::certificate_expiry() {
  if (certificate_expiry_ == nullptr) {
    certificate_expiry_ = &NewFamily(prometheus::BuildGauge(), "switchyard_certificate_expiry_seconds",
                                     "When the server's certificate expires, in seconds since 1970.", registry_.get())
                               .Add(labels_);
  }
  return *certificate_expiry_;
}

prometheus::Counter& ServerMetrics::http_request(const std::string& path, int status) {
  return http_requests_->Add(With(labels_, {{"path", path}, {"status", absl::StrCat(status)}}));
}

prometheus::Counter& ServerMetrics::otlp_spans(const std::string& result) {
  return otlp_spans_->Add(With(labels_, {{"result", result}}));
}

prometheus::Counter& ServerMetrics::http_answer_cut(const std::string& reason) {
  return http_cuts_->Add(With(labels_, {{"reason", reason}}));
}

prometheus::Counter& ServerMetrics::key_requests(const std::string& key) {
  return key_requests_->Add(With(labels_, {{"key", key}}));
}

prometheus::Counter& ServerMetrics::key_tokens(const std::string& key) {
  return key_tokens_->Add(With(labels_, {{"key", key}}));
}

std::string ServerMetrics::Page() const { return prometheus::TextSerializer().Serialize(registry_->Collect()); }

int ServerMetrics::Expose(const std::string& host, int port) {
  try {  // civetweb throws when the address is taken
    // A request occupies a thread for two seconds at most, so that requests that hang block the page only briefly.
    exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", rpc::JoinHostPort(host, port), "num_threads", "32",
                                 "request_timeout_ms", "2000", "enable_keep_alive", "no"});
    exposer_->RegisterCollectable(registry_);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? -1 : ports[0];
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace switchyard::server
