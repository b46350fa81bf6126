// The engine loop's workers: groups that come and go, steps that are done, and what each worker says.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/popularity.h"
#include "server/clock.h"
#include "server/engine/engine_loop.h"

namespace switchyard {
namespace {

BatchingPolicy PolicyFor(const ServerConfig& config, int32_t context) {
  BatchingPolicy policy = config.batching;
  policy.max_model_len = policy.max_model_len == 0 ? context : std::min(policy.max_model_len, context);
  return policy;
}

// Some minutes of a busy server: what is older fades.
constexpr int64_t kHalveCensusAfterTokens = 256 * 1024;

// Of a step: its layers' mean rows of a rank over its layers' busiest ranks' rows, as ranks wait for each other in
// every layer; 0 where nobody knows.
double Balancedness(absl::Span<const RankResult> ranks) {
  double mean = 0, busiest = 0;
  for (size_t layer = 0; layer < ranks[0].layer_rows.size(); ++layer) {
    double sum = 0, most = 0;
    for (const RankResult& rank : ranks) {
      if (layer >= rank.layer_rows.size()) return 0;
      const auto rows = static_cast<double>(std::max<int64_t>(rank.layer_rows[layer], 0));
      sum += rows;
      most = std::max(most, rows);
    }
    mean += sum / static_cast<double>(ranks.size());
    busiest += most;
  }
  return busiest > 0 ? mean / busiest : 0;
}

}  // namespace

void EngineLoop::OnEpoch(const std::string& store_token) { hooks_.on_epoch(store_token); }

void EngineLoop::PublishModel(int world, const WorkerInfo& info) {
  auto model = std::make_shared<ServedModel>();
  model->name = config_->served_model_name;
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
  for (int32_t id : text_->defaults().eos_token_ids) {
    if (std::find(model->eos_token_ids.begin(), model->eos_token_ids.end(), id) == model->eos_token_ids.end()) {
      model->eos_token_ids.push_back(id);
    }
  }
  absl::MutexLock lock(&mu_);
  model_ = std::move(model);
}

// --max_model_len beyond what the model can: such a worker is sent away before a group with it can stand.
bool EngineLoop::Contradicts(int32_t context) const {
  return scheduler_ == nullptr && config_->batching.max_model_len > context;
}

void EngineLoop::OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const WorkerInfo& first) {
  if (!scheduler_) {
    scheduler_ = std::make_unique<Scheduler>(PolicyFor(*config_, first.context));
    if (first.num_moe_layers > 0) {
      census_.emplace(RoutingShape{first.num_moe_layers, first.num_experts, first.experts_per_token},
                      kHalveCensusAfterTokens);
    }
    if (hooks_.on_first_group) hooks_.on_first_group();
  }
  const absl::Time now = MonotonicNow();
  std::vector<Event> events;
  GroupShape shape;
  shape.epoch = epoch;
  shape.num_ranks = world;
  shape.num_blocks = num_kv_blocks;
  shape.long_rope_above = first.long_rope_above;
  shape.may_lend = first.device == "cpu";
  shape.min_loan_rows = first.min_loan_rows;
  shape.expert_path_ids = first.num_moe_layers * first.experts_per_token;
  scheduler_->StartGroup(shape, now, &events);
  residency_.GroupUp();
  expert_reports_.assign(static_cast<size_t>(world), {});
  const BatchingPolicy& policy = scheduler_->policy();
  metrics_->SetMaxModelLen(policy.max_model_len);
  metrics_->SetCacheConfig({.block_size = policy.block_size,
                            .num_blocks = int64_t{world} * num_kv_blocks,
                            .dtype = first.dtype,
                            .prefix_reuse = policy.prefix_reuse});
  PublishModel(world, first);
  UpdateSnapshot();
  hooks_.on_ready(!draining_);
  Publish(std::move(events), now);
}

void EngineLoop::OnGroupDown(const std::string& reason) {
  const absl::Time now = MonotonicNow();
  down_reason_ = reason;
  down_since_ = now;
  step_sent_.clear();
  slices_.End(now);
  expert_reports_.clear();
  residency_.GroupDown(reason, now);
  profiles_.Fail(WithRetry(
      MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, absl::StrCat("the group was lost: ", reason)),
      absl::Seconds(1)));
  metrics_->groups_lost->Increment();
  hooks_.on_ready(false);
  std::vector<Event> events;
  if (scheduler_) scheduler_->LoseGroup(/*fail_waiting=*/false, now, &events);
  Publish(std::move(events), now);
  UpdateSnapshot();
}

void EngineLoop::OnStepDone(const StepResult& result) {
  const absl::Time now = MonotonicNow();
  std::vector<Event> events;
  if (const absl::Status status = scheduler_->Commit(result, now, &events); !status.ok()) {
    group_.Break(absl::StrCat("step ", result.step, ": ", status.message()), now);
    return;
  }
  if (const absl::Status status = CountExperts(result); !status.ok()) {
    LogWarn("step ", result.step, ": ", status.message());
  }
  ObserveStep(result, now);
  PlaceExperts(result);
  if (dump_steps_) DumpStep(result.group_epoch, result.step, "result", result.DebugString());
  // The next plans first: the workers should not wait for text to be made.
  PlanAll(now, &events);
  Publish(std::move(events), now);
  metrics_->publish_seconds->Observe(absl::ToDoubleSeconds(MonotonicNow() - now));
}

void EngineLoop::ObserveStep(const StepResult& result, absl::Time now) {
  int64_t rows = 0, sent = 0;
  StepTimings slowest;
  bool prompts = false;
  for (const RankResult& rank : result.ranks) {
    rows += rank.rows;
    sent += rank.rows_sent;
    prompts = prompts || TotalOf(rank.expert_counts) > TotalOf(rank.decode_expert_counts);
    for (double StepTimings::*part : {&StepTimings::expert_seconds, &StepTimings::exchange_seconds,
                                      &StepTimings::gather_seconds, &StepTimings::decide_seconds}) {
      slowest.*part = std::max(slowest.*part, rank.timings.*part);
    }
  }
  metrics_->iteration_tokens->Observe(static_cast<double>(rows));
  metrics_->expert_seconds->Observe(slowest.expert_seconds);
  metrics_->exchange_seconds->Observe(slowest.exchange_seconds);
  metrics_->gather_seconds->Observe(slowest.gather_seconds);
  metrics_->decide_seconds->Observe(slowest.decide_seconds);
  // The same on all ranks; a worker's nonsense must not end the server, as a counter that falls would.
  metrics_->fine_tuned_layers->Increment(static_cast<double>(std::max<int64_t>(result.ranks[0].fine_tuned_layers, 0)));
  metrics_->moe_tokens_exchanged->Increment(static_cast<double>(sent));
  if (const double ratio = Balancedness(result.ranks); ratio > 0) {
    metrics_->moe_balancedness(prompts ? Phase::kPrefill : Phase::kDecode).Observe(ratio);
  }
  if (const auto it = step_sent_.find(result.step); it != step_sent_.end()) {
    metrics_->step_seconds->Observe(absl::ToDoubleSeconds(now - it->second));
    slices_.StepDone(it->second, now);
    gather_window_.Observe(rows, now - it->second);
    step_sent_.erase(it);
  }
}

absl::Status EngineLoop::CountExperts(const StepResult& result) {
  if (!census_.has_value()) return absl::OkStatus();
  const auto size = static_cast<size_t>(census_->shape().num_layers) * census_->shape().num_experts;
  std::vector<int64_t> prefill(size, 0), decode(size, 0);
  for (const RankResult& rank : result.ranks) {
    if (rank.expert_counts.empty()) continue;
    const bool decodes = !rank.decode_expert_counts.empty();
    if (rank.expert_counts.size() != size || (decodes && rank.decode_expert_counts.size() != size)) {
      return absl::InvalidArgumentError(absl::StrCat("a worker tells ", rank.expert_counts.size(), " and ",
                                                     rank.decode_expert_counts.size(), " counts of experts, expected ",
                                                     size));
    }
    for (size_t i = 0; i < size; ++i) {
      const int64_t of_decodes = decodes ? rank.decode_expert_counts[i] : 0;
      if (of_decodes < 0 || of_decodes > rank.expert_counts[i] || rank.expert_counts[i] > ExpertCensus::kMaxCount) {
        return absl::InvalidArgumentError(absl::StrCat("a worker tells ", rank.expert_counts[i], " rows of an expert, ",
                                                       of_decodes, " of them decoded"));
      }
      decode[i] += of_decodes;
      prefill[i] += rank.expert_counts[i] - of_decodes;
    }
  }
  RETURN_IF_ERROR(census_->Add(Phase::kPrefill, prefill));
  return census_->Add(Phase::kDecode, decode);
}

void EngineLoop::OnLocalWorkerFenced(int local_index, int64_t pid) {
  metrics_->workers_fenced->Increment();
  hooks_.on_fenced(local_index, pid);
}

// --- what workers say: posted, then handled on the loop's thread ---

void EngineLoop::OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, WorkerInfo info) {
  Post([this, id, client = std::move(client), info = std::move(info)]() mutable {
    const int32_t context = info.context;
    const bool own = group_.IsOwn(info);
    const absl::Status status = group_.Register(id, client, std::move(info), MonotonicNow());
    if (!status.ok()) {
      LogWarn("worker ", id, " is refused: ", status.message());
      client->Close(status);
    } else if (Contradicts(context)) {
      const std::string message = absl::StrCat("--max_model_len=", config_->batching.max_model_len,
                                               ": the model's context is ", context, " tokens");
      group_.Evict(id, absl::FailedPreconditionError(message), MonotonicNow());
      // One from elsewhere may have come with a wrong model; of an own one it is this server's model.
      if (own && hooks_.on_fatal) hooks_.on_fatal(message);
    }
  });
}

void EngineLoop::OnHeartbeat(WorkerId id) {
  Post([this, id] { group_.Heartbeat(id, MonotonicNow()); });
}

void EngineLoop::OnLoadProgress(WorkerId id, int64_t done, int64_t total) {
  Post([this, id, done, total] { group_.LoadProgress(id, done, total, MonotonicNow()); });
}

void EngineLoop::OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) {
  Post([this, id, epoch, num_kv_blocks] { group_.Ready(id, epoch, num_kv_blocks, MonotonicNow()); });
}

void EngineLoop::OnStepResult(WorkerId id, int64_t epoch, int64_t step, RankResult result) {
  Post([this, id, epoch, step, result = std::move(result)]() mutable {
    group_.Result(id, epoch, step, std::move(result), MonotonicNow());
  });
}

void EngineLoop::OnGroupFault(WorkerId id, int64_t epoch, std::string message) {
  Post([this, id, epoch, message = std::move(message)] { group_.Fault(id, epoch, message, MonotonicNow()); });
}

// A link ends when its process does: of a local one it is known how.
std::string EngineLoop::WhyLost(WorkerId id, const std::string& link_reason) const {
  const auto member = group_.members().find(id);
  if (member == group_.members().end() || member->second.info.local_index < 0 || !hooks_.end_of) return link_reason;
  const std::string end = hooks_.end_of(member->second.info.local_index, member->second.info.pid);
  return end.empty() ? link_reason : absl::StrCat("process ended with ", end);
}

void EngineLoop::OnLinkLost(WorkerId id, std::string reason) {
  Post([this, id, reason = std::move(reason)] { group_.Lost(id, WhyLost(id, reason), MonotonicNow()); });
}

}  // namespace switchyard
