#include "server/fleet/serving_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/log.h"

namespace switchyard::server {
namespace {

WorkerGroup::Options GroupOptions(const ServerConfig& config) {
  return {.world = config.workers,
          .local_workers = config.local_workers,
          .dtype = config.dtype,
          .quantization = config.quantization,
          .kv_cache_dtype = config.kv_cache_dtype,
          .tokens = {config.join_token, config.local_token},
          .encrypt_links = config.encrypt_links,
          .step_timeout = config.step_timeout,
          .row_timeout = config.row_timeout};
}

// Names what decides bits beside the weights.
uint64_t NumericsOf(int world, const fleet::WorkerInfo& info, bool add_outputs) {
  return Fnv1a(absl::StrCat(info.device.substr(0, info.device.find(':')), " ", info.isa, " ", info.dtype,
                            info.quantization, " ", add_outputs ? world : 0,
                            info.kv_cache_dtype.empty() ? "" : absl::StrCat(" ", info.kv_cache_dtype)));
}

}  // namespace

absl::Status WorkersLost(const std::string& message) {
  return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, message), absl::Seconds(1));
}

absl::Status LoadingError(const ServerConfig& config, const std::string& why) {
  if (config.only_trains) return rpc::MakeError(absl::StatusCode::kNotFound, v1::MODEL_NOT_FOUND, kOnlyTrains);
  return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::MODEL_LOADING,
                                       absl::StrCat("model ", config.served_model_name, " is LOADING: ", why)),
                        absl::Seconds(1));
}

ServingGroup::ServingGroup(const ServerConfig* config, const text::TextProcessor* text, ServerMetrics* metrics,
                           const EngineHooks* hooks, WorkerGroup::Listener* listener)
    : config_(config),
      text_(text),
      metrics_(metrics),
      hooks_(hooks),
      workers_(GroupOptions(*config), listener),
      loss_causes_(hooks->end_of, hooks->oom_kills) {}

int ServingGroup::RankIn(WorkerId id, int64_t group_epoch) const {
  const auto member = workers_.members().find(id);
  const bool current = ready() && group_epoch == workers_.epoch();
  return current && member != workers_.members().end() ? member->second.rank : -1;
}

WorkerClient* ServingGroup::ClientOf(int rank) const {
  for (const auto& [id, member] : workers_.members()) {
    if (member.rank == rank) return member.client.get();
  }
  return nullptr;
}

void ServingGroup::Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info) {
  const int32_t context = info.context;
  const bool own = workers_.IsOwn(info);
  const absl::Status status =
      config_->only_trains ? absl::FailedPreconditionError(absl::StrCat(kOnlyTrains, "; give the worker --role=train"))
                           : workers_.Register(id, client, std::move(info), MonotonicNow());
  if (!status.ok()) {
    LogWarn("worker ", id, " is refused: ", status.message());
    client->Close(status);
  } else if (scheduler_ == nullptr && config_->batching.max_model_len > context) {
    // Evicts such a worker before a group with it can form.
    const std::string message =
        absl::StrCat("--max_model_len=", config_->batching.max_model_len, ": the model's context is ", context,
                     " tokens (of a config.json by max_position_embeddings and rope_scaling)");
    workers_.Evict(id, absl::FailedPreconditionError(message), MonotonicNow());
    // A worker from elsewhere may have a wrong model; a local one has this server's.
    if (own && hooks_->on_fatal) hooks_->on_fatal(message);
  }
}

// A link also ends with its process; for a local worker the reason names how that ended.
void ServingGroup::Lost(WorkerId id, const std::string& link_reason) {
  const auto member = workers_.members().find(id);
  std::string end;
  if (member != workers_.members().end()) {
    const fleet::WorkerInfo& info = member->second.info;
    if (info.local_index >= 0 && hooks_->end_of) end = hooks_->end_of(info.local_index, info.pid);
    loss_causes_.Lost(info, end);
  }
  workers_.Lost(id, end.empty() ? link_reason : absl::StrCat("process ended with ", end), MonotonicNow());
}

void ServingGroup::Tick(absl::Time now) {
  if (config_->only_trains) return;
  loss_causes_.Tick(now, ready());
  workers_.Tick(now);
  if (scheduler_) return;
  // Before the first group, the start must not wait for ever for a worker that does not come or makes no progress.
  workers_.NoteStart(now);
  if (now - workers_.last_progress() > config_->start_timeout && hooks_->on_fatal) hooks_->on_fatal(WhyNoGroup());
}

std::string ServingGroup::WhyNoGroup() const {
  return absl::StrCat("no group of workers within --start_timeout=", absl::FormatDuration(config_->start_timeout), ": ",
                      workers_.NotReadyReason());
}

void ServingGroup::Up(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first, absl::Time now,
                      std::vector<batching::Event>* events) {
  if (!scheduler_) {
    batching::BatchingPolicy policy = config_->batching;
    policy.max_model_len = policy.max_model_len == 0 ? first.context : std::min(policy.max_model_len, first.context);
    scheduler_ = std::make_unique<batching::Scheduler>(policy);
    if (hooks_->on_first_group) hooks_->on_first_group();
  }
  scheduler_->StartGroup({.epoch = epoch,
                          .num_ranks = world,
                          .num_blocks = num_kv_blocks,
                          .lost_from_outside = loss_causes_.TakeVerdict(),
                          .numerics = NumericsOf(world, first, config_->add_outputs),
                          .long_rope_above = first.long_rope_above,
                          .may_give = first.device == "cpu",
                          .expert_path_ids = first.num_moe_layers * first.experts_per_token,
                          .min_rebalance_rows = first.min_rebalance_rows},
                         now, events);
  const batching::BatchingPolicy& policy = scheduler_->policy();
  metrics_->SetMaxModelLen(policy.max_model_len);
  metrics_->SetCacheConfig(policy.block_size, int64_t{world} * num_kv_blocks,
                           first.kv_cache_dtype.empty() ? first.dtype : first.kv_cache_dtype, policy.prefix_reuse);
  metrics_->SetAdapters(first.adapters);
  PublishModel(world, first);
}

void ServingGroup::PublishModel(int world, const fleet::WorkerInfo& info) {
  auto model = std::make_shared<ServedModel>();
  model->name = config_->served_model_name;
  model->architecture = info.architecture;
  model->dtype = info.dtype;
  model->quantization = info.quantization;
  model->kv_cache_dtype = info.kv_cache_dtype;
  model->weights_hash = info.weights_hash;
  model->vocab_size = info.vocab_size;
  model->max_model_len = scheduler_->max_context();
  model->num_layers = info.num_layers;
  model->num_moe_layers = info.num_moe_layers;
  model->num_experts = info.num_experts;
  model->experts_per_token = info.experts_per_token;
  model->num_workers = world;
  model->eos_token_ids = info.eos_token_ids;
  model->adapters = info.adapters;
  for (int32_t id : text_->defaults().eos_token_ids) {
    if (std::find(model->eos_token_ids.begin(), model->eos_token_ids.end(), id) == model->eos_token_ids.end()) {
      model->eos_token_ids.push_back(id);
    }
  }
  absl::MutexLock lock(&mu_);
  model_ = std::move(model);
}

void ServingGroup::Down(const std::string& reason, absl::Time now) {
  down_reason_ = reason;
  down_since_ = now;
}

bool ServingGroup::GivenUp(absl::Time now) const {
  return !ready() && now - std::max(down_since_, workers_.last_progress()) > config_->start_timeout;
}

absl::Status ServingGroup::GivenUpError() const { return WorkersLost(absl::StrCat(WhyNoGroup(), "; ", down_reason_)); }

}  // namespace switchyard::server
