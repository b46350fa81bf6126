#include "server/fleet/serving_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "server/clock.h"

namespace switchyard::server {
namespace {

WorkerGroup::Options GroupOptions(const ServerConfig& config) {
  WorkerGroup::Options options;
  options.world = config.num_workers();
  options.local_workers = config.local_workers;
  options.dtype = config.dtype;
  options.tokens = {config.join_token, config.local_token};
  options.step_timeout = config.step_timeout;
  options.row_timeout = config.row_timeout;
  return options;
}

batching::BatchingPolicy PolicyFor(const ServerConfig& config, int32_t context) {
  batching::BatchingPolicy policy = config.batching;
  policy.max_model_len = policy.max_model_len == 0 ? context : std::min(policy.max_model_len, context);
  return policy;
}

}  // namespace

absl::Status WorkersLost(const std::string& message) {
  return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, message), absl::Seconds(1));
}

ServingGroup::ServingGroup(const Around& around, WorkerGroup::Listener* listener)
    : around_(around), workers_(GroupOptions(*around.config), listener) {}

std::shared_ptr<const ServedModel> ServingGroup::model() const {
  absl::MutexLock lock(&mu_);
  return model_;
}

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
  const absl::Status status = workers_.Register(id, client, std::move(info), MonotonicNow());
  if (!status.ok()) {
    LogWarn("worker ", id, " is refused: ", status.message());
    client->Close(status);
  } else if (Contradicts(context)) {
    const std::string message = absl::StrCat("--max_model_len=", around_.config->batching.max_model_len,
                                             ": the model's context is ", context, " tokens");
    workers_.Evict(id, absl::FailedPreconditionError(message), MonotonicNow());
    // One from elsewhere may have come with a wrong model; of an own one it is this server's model.
    if (own && around_.hooks->on_fatal) around_.hooks->on_fatal(message);
  }
}

// --max_model_len beyond what the model can: such a worker is sent away before a group with it can stand.
bool ServingGroup::Contradicts(int32_t context) const {
  return scheduler_ == nullptr && around_.config->batching.max_model_len > context;
}

// A link ends when its process does: of a local one it is known how.
void ServingGroup::Lost(WorkerId id, const std::string& link_reason) {
  const auto member = workers_.members().find(id);
  std::string end;
  if (member != workers_.members().end() && member->second.info.local_index >= 0 && around_.hooks->end_of) {
    end = around_.hooks->end_of(member->second.info.local_index, member->second.info.pid);
  }
  workers_.Lost(id, end.empty() ? link_reason : absl::StrCat("process ended with ", end), MonotonicNow());
}

void ServingGroup::Tick(absl::Time now) {
  workers_.Tick(now);
  if (!scheduler_) CheckStart(now);
}

// Before the first group: the start must not wait for ever for a worker that does not come, or does not get on.
void ServingGroup::CheckStart(absl::Time now) {
  workers_.NoteStart(now);
  if (now - workers_.last_progress() <= around_.config->start_timeout || !around_.hooks->on_fatal) return;
  around_.hooks->on_fatal(WhyNoGroup());
}

std::string ServingGroup::WhyNoGroup() const {
  return absl::StrCat("no group of workers within --start_timeout=",
                      absl::FormatDuration(around_.config->start_timeout), ": ", workers_.NotReadyReason());
}

void ServingGroup::Up(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first, absl::Time now,
                      std::vector<batching::Event>* events) {
  if (!scheduler_) {
    scheduler_ = std::make_unique<batching::Scheduler>(PolicyFor(*around_.config, first.context));
    if (around_.hooks->on_first_group) around_.hooks->on_first_group();
  }
  batching::GroupShape shape;
  shape.epoch = epoch;
  shape.num_ranks = world;
  shape.num_blocks = num_kv_blocks;
  shape.long_rope_above = first.long_rope_above;
  shape.may_give = first.device == "cpu";
  shape.min_rebalance_rows = first.min_rebalance_rows;
  shape.expert_path_ids = first.num_moe_layers * first.experts_per_token;
  scheduler_->StartGroup(shape, now, events);
  const batching::BatchingPolicy& policy = scheduler_->policy();
  around_.metrics->SetMaxModelLen(policy.max_model_len);
  around_.metrics->SetCacheConfig({.block_size = policy.block_size,
                                   .num_blocks = int64_t{world} * num_kv_blocks,
                                   .dtype = first.dtype,
                                   .prefix_reuse = policy.prefix_reuse});
  PublishModel(world, first);
}

void ServingGroup::PublishModel(int world, const fleet::WorkerInfo& info) {
  auto model = std::make_shared<ServedModel>();
  model->name = around_.config->served_model_name;
  model->architecture = info.architecture;
  model->dtype = info.dtype;
  model->weights_hash = info.weights_hash;
  model->vocab_size = info.vocab_size;
  model->max_model_len = scheduler_->max_context();
  model->num_layers = info.num_layers;
  model->num_moe_layers = info.num_moe_layers;
  model->num_experts = info.num_experts;
  model->experts_per_token = info.experts_per_token;
  model->num_workers = world;
  model->eos_token_ids = info.eos_token_ids;
  for (int32_t id : around_.text->defaults().eos_token_ids) {
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
  return !ready() && now - std::max(down_since_, workers_.last_progress()) > around_.config->start_timeout;
}

absl::Status ServingGroup::GivenUpError() const { return WorkersLost(absl::StrCat(WhyNoGroup(), "; ", down_reason_)); }

}  // namespace switchyard::server
