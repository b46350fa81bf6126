#include "workers/moe/expert_offload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

ExpertOffload::ExpertOffload(ExpertOffloadOptions options, std::unique_ptr<ExpertStore> store)
    : options_(std::move(options)),
      shape_{.num_layers = options_.num_layers,
             .num_experts = static_cast<int>(options_.residents.size()),
             .num_slots = store->num_slots()},
      store_(std::move(store)),
      forecast_(shape_),
      rows_(options_.residents.size()),
      gate_up_(options_.residents.size()),
      down_(options_.residents.size()) {}

absl::StatusOr<std::unique_ptr<ExpertOffload>> ExpertOffload::Create(ExpertOffloadOptions options,
                                                                     std::unique_ptr<ExpertStore> store,
                                                                     absl::Time deadline) {
  SY_CHECK(options.num_layers >= 1 && options.make_policy != nullptr);
  if (store->num_slots() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("expert offload: wants 2 slots at least, has ", store->num_slots()));
  }
  auto offload = std::unique_ptr<ExpertOffload>(new ExpertOffload(std::move(options), std::move(store)));
  RETURN_IF_ERROR(offload->Restart(deadline));
  return offload;
}

ExpertId ExpertOffload::IdOf(ExpertKey key) const {
  return {.layer = shape_.LayerOf(key), .expert = options_.residents[static_cast<size_t>(key % shape_.num_experts)]};
}

absl::Status ExpertOffload::Restart(absl::Time deadline) {
  policy_.reset();
  forecast_ = NeedForecast(shape_);
  next_layer_ = 0;
  RETURN_IF_ERROR(store_->AwaitCopies(deadline));
  for (int slot = 0; slot < shape_.num_slots; ++slot) RETURN_IF_ERROR(store_->Evict(slot));
  std::unique_ptr<CachePolicy> policy = options_.make_policy(shape_);
  const std::vector<ExpertKey> keys = policy->InitialSlots();
  for (size_t slot = 0; slot < keys.size(); ++slot) {
    if (keys[slot] == kNoExpert) continue;
    // The last one has to wait for another, as one slot is always left to demand.
    if (slot + 1 == keys.size()) RETURN_IF_ERROR(store_->AwaitCopies(deadline));
    RETURN_IF_ERROR(store_->StartCopy(IdOf(keys[slot]), static_cast<int>(slot), CopyPriority::kPrefetch));
  }
  RETURN_IF_ERROR(store_->AwaitCopies(deadline));
  policy_ = std::move(policy);
  return absl::OkStatus();
}

absl::Status ExpertOffload::Check(absl::Span<const int32_t> experts, int num_micro_batches) const {
  if (experts != absl::MakeConstSpan(options_.residents)) {
    return absl::InvalidArgumentError(absl::StrCat("expert offload: the layout has ", experts.size(),
                                                   " experts here, the store others, ", options_.residents.size()));
  }
  if (num_micro_batches == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("expert offload: an expert budget with ", num_micro_batches,
                                               " micro-batches a layer: only 1 so far"));
}

absl::Status ExpertOffload::RunLayer(const Call& call, Compute compute) {
  const int layer = call.layer;
  const absl::Span<const int32_t> offsets = call.offsets;
  SY_CHECK_EQ(offsets.size(), rows_.size() + 1);
  // A pass that ended early, here or elsewhere, is followed by one that begins with the first layer.
  if (policy_ == nullptr || (layer == 0 && next_layer_ != 0)) RETURN_IF_ERROR(Restart(call.deadline));
  if (layer != next_layer_) {
    policy_.reset();
    return absl::InternalError(
        absl::StrCat("expert offload: MoE layer ", layer, " runs, it is layer ", next_layer_, "'s turn"));
  }
  next_layer_ = (layer + 1) % shape_.num_layers;
  LayerNeed need = {.layer = layer, .rows = rows_};
  for (size_t e = 0; e < rows_.size(); ++e) {
    rows_[e] = offsets[e + 1] - offsets[e];
    if (rows_[e] > 0) need.compute_ticks += options_.expert_ticks + rows_[e] * options_.row_ticks;
  }
  const absl::Status status = RunPlan(policy_->OnGate(need, Forecasts(need, call.estimates)), call, compute);
  if (!status.ok()) policy_.reset();
  return status;
}

absl::Span<const LayerForecast> ExpertOffload::Forecasts(const LayerNeed& need,
                                                         absl::Span<const LayerEstimate> estimates) {
  forecast_.Observe(need);
  int last = 0;
  for (const LayerEstimate& estimate : estimates) {
    const int ahead = estimate.layer > need.layer ? estimate.layer - need.layer  //
                                                  : estimate.layer - need.layer + shape_.num_layers;
    if (ahead <= last || ahead > NeedForecast::kMaxAhead) continue;
    last = ahead;
    expected_.clear();
    for (const int32_t expert : options_.residents)
      expected_.push_back(estimate.popularity[static_cast<size_t>(expert)]);
    forecast_.Expect(need.layer, ahead, expected_);
  }
  return forecast_.forecasts();
}

absl::Status ExpertOffload::RunPlan(const LayerPlan& plan, const Call& call, Compute compute) {
  Progress progress = {.steps = plan.steps, .deadline = call.deadline, .stream = call.stream};
  // Prefetches that it uses go before the copies that it starts.
  for (const PlanStep& step : plan.steps) {
    if (step.kind == PlanStep::kUse) store_->Hurry(IdOf(step.key));
  }
  for (;;) {
    RETURN_IF_ERROR(StartSteps(&progress));
    if (progress.steps.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(RunWave(&progress, compute));
  }
}

absl::Status ExpertOffload::StartSteps(Progress* progress) {
  std::vector<bool> in_use(static_cast<size_t>(shape_.num_slots));
  std::vector<PlanStep> left;
  for (const PlanStep& step : progress->steps) {
    SY_CHECK(0 <= step.slot && step.slot < shape_.num_slots);
    if (step.kind == PlanStep::kUse || in_use[static_cast<size_t>(step.slot)]) {
      in_use[static_cast<size_t>(step.slot)] = true;
      left.push_back(step);
      continue;
    }
    RETURN_IF_ERROR(Do(step));
  }
  // What is left has a use before it.
  SY_CHECK(left.empty() || left.front().kind == PlanStep::kUse);
  progress->steps = std::move(left);
  return absl::OkStatus();
}

absl::Status ExpertOffload::Do(const PlanStep& step) {
  if (const absl::Status status = store_->Evict(step.slot); !status.ok()) {
    return absl::InternalError(absl::StrCat("expert offload: a plan that does not hold together: ", status.message()));
  }
  if (step.kind == PlanStep::kDrop) return absl::OkStatus();
  const bool prefetch = step.kind == PlanStep::kPrefetch;
  const absl::Status status =
      store_->StartCopy(IdOf(step.key), step.slot, prefetch ? CopyPriority::kPrefetch : CopyPriority::kDemand);
  // Demand has the last slot: then the expert comes when it is used (RunWave), as if its prefetch were very late.
  return prefetch && absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

// The first use and those after it whose experts are there.
absl::Status ExpertOffload::RunWave(Progress* progress, Compute compute) {
  std::vector<ExpertId> ids;
  std::vector<size_t> experts;
  size_t taken = 0;
  for (const PlanStep& step : progress->steps) {
    if (step.kind != PlanStep::kUse) break;
    const ExpertId id = IdOf(step.key);
    const SlotState state = store_->StateOf(id);
    if (taken > 0 && state != SlotState::kFilled) break;
    if (state == SlotState::kFree) {
      RETURN_IF_ERROR(Do({.kind = PlanStep::kCopy, .key = step.key, .slot = step.slot}));
    }
    ids.push_back(id);
    experts.push_back(static_cast<size_t>(step.key % shape_.num_experts));
    ++taken;
  }
  absl::StatusOr<ExpertLease> lease = store_->Acquire(ids, progress->deadline);
  RETURN_IF_ERROR(lease.status());
  std::fill(gate_up_.begin(), gate_up_.end(), nullptr);
  std::fill(down_.begin(), down_.end(), nullptr);
  for (size_t i = 0; i < experts.size(); ++i) {
    gate_up_[experts[i]] = &lease->gate_up(static_cast<int64_t>(i));
    down_[experts[i]] = &lease->down(static_cast<int64_t>(i));
  }
  ++waves_;
  RETURN_IF_ERROR(compute(gate_up_, down_));
  RETURN_IF_ERROR(lease->ReleaseBehind(progress->stream));
  progress->steps.erase(progress->steps.begin(), progress->steps.begin() + static_cast<int64_t>(taken));
  return absl::OkStatus();
}

}  // namespace switchyard
