#include "workers/moe/experts/expert_offload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement.h"
#include "scheduler/popularity/popularity.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

ExpertOffload::ExpertOffload(ExpertOffloadOptions options, std::unique_ptr<ExpertStore> store)
    : options_(std::move(options)),
      shape_{.num_layers = options_.num_layers,
             .num_experts = static_cast<int>(options_.experts.size()),
             .num_slots = store->num_slots(),
             .token_uses = options_.token_uses},
      store_(std::move(store)),
      forecast_(shape_),
      between_gates_(options_.measured_gates),
      // A pass has one gate of this kind, and one of the other kind for each further layer.
      before_first_((options_.measured_gates + options_.num_layers - 1) / options_.num_layers),
      store_slots_(static_cast<size_t>(shape_.num_slots)),
      rows_(options_.experts.size()),
      slots_(options_.experts.size()) {
  for (size_t place = 0; place < options_.experts.size(); ++place) {
    const auto expert = static_cast<size_t>(options_.experts[place]);
    if (expert >= place_of_.size()) place_of_.resize(expert + 1, -1);
    place_of_[expert] = static_cast<int32_t>(place);
  }
}

absl::StatusOr<std::unique_ptr<ExpertOffload>> ExpertOffload::Create(ExpertOffloadOptions options,
                                                                     std::unique_ptr<ExpertStore> store) {
  SY_CHECK(options.num_layers >= 1 && options.make_policy != nullptr);
  SY_CHECK(options.popularity.empty() ||
           options.popularity.size() == static_cast<size_t>(options.num_layers) * options.experts.size());
  if (store->num_slots() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("expert offload: wants 2 slots at least, has ", store->num_slots()));
  }
  return std::unique_ptr<ExpertOffload>(new ExpertOffload(std::move(options), std::move(store)));
}

ExpertId ExpertOffload::IdOf(offload::ExpertKey key) const {
  return {.layer = shape_.LayerOf(key), .expert = options_.experts[static_cast<size_t>(key % shape_.num_experts)]};
}

offload::ExpertKey ExpertOffload::KeyOf(int layer, int32_t expert) const {
  if (expert < 0 || static_cast<size_t>(expert) >= place_of_.size()) return offload::kNoExpert;
  const int32_t place = place_of_[static_cast<size_t>(expert)];
  return place < 0 ? offload::kNoExpert : layer * shape_.num_experts + place;
}

std::vector<int64_t> ExpertOffload::FirstWorth() const {
  std::vector<int64_t> worth(static_cast<size_t>(shape_.num_keys()));
  for (size_t key = 0; key < worth.size(); ++key) {
    worth[key] =
        1 + (options_.popularity.empty() ? popularity::kRow : std::min(options_.popularity[key], popularity::kRow));
  }
  for (const ExpertStore::SlotView& slot : store_->Slots()) {
    if (slot.state == SlotState::kFree) continue;
    worth[static_cast<size_t>(KeyOf(slot.id.layer, slot.id.expert))] += 2 * popularity::kRow;
  }
  return worth;
}

absl::Status ExpertOffload::PairSlots(absl::Span<const offload::ExpertKey> wanted) {
  const std::vector<ExpertStore::SlotView> slots = store_->Slots();
  std::vector<int> held(static_cast<size_t>(shape_.num_keys()), -1);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].state == SlotState::kFree) continue;
    held[static_cast<size_t>(KeyOf(slots[slot].id.layer, slots[slot].id.expert))] = static_cast<int>(slot);
  }
  std::vector<bool> taken(slots.size());
  for (size_t slot = 0; slot < wanted.size(); ++slot) {
    store_slots_[slot] = wanted[slot] == offload::kNoExpert ? -1 : held[static_cast<size_t>(wanted[slot])];
    if (store_slots_[slot] >= 0) taken[static_cast<size_t>(store_slots_[slot])] = true;
  }
  int next = 0;
  for (int& slot : store_slots_) {
    if (slot >= 0) continue;
    while (taken[static_cast<size_t>(next)]) ++next;
    RETURN_IF_ERROR(store_->Evict(next));
    slot = next++;
  }
  return absl::OkStatus();
}

absl::Status ExpertOffload::CopyMissing(absl::Span<const offload::ExpertKey> wanted, absl::Time deadline,
                                        Progress progress) {
  const int64_t before = store_->counters().copied_bytes;
  std::vector<size_t> missing;  // slots
  int64_t total = 0;
  for (size_t slot = 0; slot < wanted.size(); ++slot) {
    if (wanted[slot] == offload::kNoExpert || store_->StateOf(IdOf(wanted[slot])) != SlotState::kFree) continue;
    missing.push_back(slot);
    total += store_->expert_bytes(IdOf(wanted[slot]).layer);
  }
  for (const size_t slot : missing) {
    const auto start = [&] {
      return store_->StartCopy(IdOf(wanted[slot]), store_slots_[slot], CopyPriority::kPrefetch);
    };
    absl::Status begun = start();
    if (absl::IsFailedPrecondition(begun)) {  // one slot is always left to demand: it waits for the others
      RETURN_IF_ERROR(store_->AwaitCopies(before, total, deadline, progress));
      begun = start();
    }
    RETURN_IF_ERROR(begun);
  }
  RETURN_IF_ERROR(store_->AwaitCopies(before, total, deadline, progress));
  for (const offload::ExpertKey key : wanted) {
    if (key != offload::kNoExpert && store_->StateOf(IdOf(key)) != SlotState::kFilled)
      return store_->FailureOf(IdOf(key));
  }
  return absl::OkStatus();
}

absl::Status ExpertOffload::Fill(absl::Time deadline, Progress progress) {
  policy_.reset();
  forecast_ = offload::NeedForecast(shape_);
  next_layer_ = next_micro_batch_ = 0;
  std::unique_ptr<offload::CachePolicy> policy = options_.make_policy(shape_, FirstWorth());
  const std::vector<offload::ExpertKey> wanted = policy->InitialSlots();
  RETURN_IF_ERROR(PairSlots(wanted));
  RETURN_IF_ERROR(CopyMissing(wanted, deadline, progress));
  policy_ = std::move(policy);
  return absl::OkStatus();
}

absl::Status ExpertOffload::Check(absl::Span<const int32_t> experts) const {
  for (const int32_t expert : experts) {
    if (expert == placement::kEmptySlot || KeyOf(0, expert) != offload::kNoExpert) continue;
    return absl::InvalidArgumentError(absl::StrCat("expert offload: the layout has expert ", expert,
                                                   " here, which is not one of the store's ", options_.experts.size()));
  }
  return absl::OkStatus();
}

absl::Status ExpertOffload::CountRows(const LayerContext& layer, const ExpertRows& rows) {
  SY_CHECK_EQ(rows.offsets.size(), rows.experts.size() + 1);
  std::fill(rows_.begin(), rows_.end(), 0);
  for (size_t slot = 0; slot < rows.experts.size(); ++slot) {
    const int32_t count = rows.offsets[slot + 1] - rows.offsets[slot];
    if (count == 0 || (!rows.elsewhere.empty() && rows.elsewhere[slot] != 0)) continue;
    const offload::ExpertKey key = KeyOf(layer.index, rows.experts[slot]);
    if (key == offload::kNoExpert) {
      return absl::InternalError(absl::StrCat("expert offload: ", count, " rows of MoE layer ", layer.index,
                                              " came for slot ", slot, ", whose expert, ", rows.experts[slot],
                                              ", is not here"));
    }
    rows_[static_cast<size_t>(key % shape_.num_experts)] = count;
    slots_[static_cast<size_t>(key % shape_.num_experts)] = static_cast<int32_t>(slot);
  }
  if (layer.chunk == 0) layer_rows_.assign(rows_.size(), 0);
  later_.clear();
  for (size_t place = 0; place < rows_.size(); ++place) {
    layer_rows_[place] += rows_[place];
    if (!rows.later.empty()) later_.push_back(rows.later[static_cast<size_t>(options_.experts[place])]);
  }
  return absl::OkStatus();
}

absl::Status ExpertOffload::TakeTurn(const MoeContext& context, const LayerContext& layer) {
  const bool first = layer.index == 0 && layer.chunk == 0;
  // After a pass that ended early, the next one begins with the first layer.
  if (policy_ == nullptr || (first && !AtStart())) {
    RETURN_IF_ERROR(Fill(context.deadline, [](int64_t, int64_t) { return true; }));
  }
  if (layer.index != next_layer_ || layer.chunk != next_micro_batch_) {
    policy_.reset();
    const auto name = [](int layer, int part) { return absl::StrCat("MoE layer ", layer, ", micro-batch ", part); };
    return absl::InternalError(absl::StrCat("expert offload: ", name(layer.index, layer.chunk),
                                            ", runs; it is the turn of ", name(next_layer_, next_micro_batch_)));
  }
  next_micro_batch_ = (layer.chunk + 1) % layer.num_chunks;
  if (next_micro_batch_ == 0) next_layer_ = (layer.index + 1) % shape_.num_layers;
  return absl::OkStatus();
}

offload::LayerPlan ExpertOffload::Plan(absl::FunctionRef<offload::LayerPlan()> plan) {
  const absl::Time begin = MonotonicNow();
  offload::LayerPlan planned = plan();
  plan_seconds_ += absl::ToDoubleSeconds(MonotonicNow() - begin);
  return planned;
}

void ExpertOffload::MeasureCost(int layer, absl::Time now) {
  if (layer == 0 && pass_began_ != absl::InfinitePast()) {
    before_first_.Add(absl::ToInt64Nanoseconds(now - pass_began_), 0, 0);
  } else if (layer > 0 && last_gate_ != absl::InfinitePast()) {
    const double waited = store_->counters().wait_seconds - waited_at_gate_;
    between_gates_.Add(absl::ToInt64Nanoseconds(now - last_gate_ - absl::Seconds(waited)), last_expected_, last_rows_);
  }
  last_gate_ = now;
  pass_began_ = absl::InfinitePast();
  waited_at_gate_ = store_->counters().wait_seconds;
}

absl::Status ExpertOffload::RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                     Compute compute) {
  RETURN_IF_ERROR(TakeTurn(context, layer));
  RETURN_IF_ERROR(CountRows(layer, rows));
  offload::LayerNeed need = {
      .layer = layer.index, .rows = rows_, .parts_left = layer.num_chunks - 1 - layer.chunk, .later = later_};
  int64_t num_rows = 0;
  for (const int32_t count : rows_) {
    if (count > 0) need.compute_ticks += options_.expert_ticks + count * options_.row_ticks;
    num_rows += count;
  }
  if (layer.num_chunks == 1) MeasureCost(layer.index, MonotonicNow());
  last_expected_ = need.compute_ticks;
  last_rows_ = num_rows;
  if (need.parts_left == 0) {
    const int64_t of_layer = std::accumulate(layer_rows_.begin(), layer_rows_.end(), int64_t{0});
    need.compute_ticks += between_gates_.beside(0, of_layer);
  }
  gate_up_.assign(rows.experts.size(), nullptr);
  down_.assign(rows.experts.size(), nullptr);
  absl::Span<const offload::LayerForecast> forecasts;
  if (need.parts_left == 0) {
    forecast_.Observe({.layer = layer.index, .rows = layer_rows_});
    forecasts = Forecasts(layer.index, layer.estimates);
  }
  const offload::LayerPlan plan = Plan([&] { return policy_->OnGate(need, forecasts); });
  const absl::Status status = RunPlan(context, plan, compute);
  if (!status.ok()) policy_.reset();
  return status;
}

absl::Status ExpertOffload::BeginPass(absl::Span<const placement::LayerEstimate> estimates) {
  // After an error, or a pass that ended early, the first layer begins anew.
  if (policy_ == nullptr || !AtStart()) return absl::OkStatus();
  const absl::Span<const offload::LayerForecast> forecasts = Forecasts(offload::NeedForecast::kBeforePass, estimates);
  pass_began_ = MonotonicNow();
  const int64_t ticks = before_first_.beside(options_.first_gate_ticks, 0);
  UnderWay plan = {.steps = Plan([&] { return policy_->OnPass(forecasts, ticks); }).steps, .deadline = {}};
  const absl::Status status = StartSteps(&plan);
  if (!status.ok()) policy_.reset();
  return status;
}

absl::Span<const offload::LayerForecast> ExpertOffload::Forecasts(
    int layer, absl::Span<const placement::LayerEstimate> estimates) {
  int last = 0;
  for (const placement::LayerEstimate& estimate : estimates) {
    const int ahead = estimate.layer > layer ? estimate.layer - layer : estimate.layer - layer + shape_.num_layers;
    if (ahead <= last || ahead > offload::NeedForecast::kMaxAhead) continue;
    last = ahead;
    expected_.clear();
    for (const int32_t expert : options_.experts) expected_.push_back(estimate.popularity[static_cast<size_t>(expert)]);
    forecast_.Expect(layer, ahead, expected_);
  }
  return forecast_.forecasts();
}

absl::Status ExpertOffload::RunPlan(const MoeContext& context, const offload::LayerPlan& plan, Compute compute) {
  UnderWay left = {.steps = plan.steps, .deadline = context.deadline, .stream = context.stream};
  // Prefetches that the plan uses go before the copies that it starts.
  for (const offload::PlanStep& step : plan.steps) {
    if (step.kind == offload::PlanStep::kUse) store_->RaisePriority(IdOf(step.key));
  }
  for (;;) {
    RETURN_IF_ERROR(StartSteps(&left));
    if (left.steps.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(RunWave(&left, compute));
  }
}

absl::Status ExpertOffload::StartSteps(UnderWay* plan) {
  std::vector<bool> in_use(static_cast<size_t>(shape_.num_slots));
  std::vector<offload::PlanStep> left;
  for (const offload::PlanStep& step : plan->steps) {
    SY_CHECK(0 <= step.slot && step.slot < shape_.num_slots);
    if (step.kind == offload::PlanStep::kUse || in_use[static_cast<size_t>(step.slot)]) {
      in_use[static_cast<size_t>(step.slot)] = true;
      left.push_back(step);
      continue;
    }
    RETURN_IF_ERROR(Do(step));
  }
  // The steps that are left begin with a use.
  SY_CHECK(left.empty() || left.front().kind == offload::PlanStep::kUse);
  plan->steps = std::move(left);
  return absl::OkStatus();
}

absl::Status ExpertOffload::Do(const offload::PlanStep& step) {
  const int slot = store_slots_[static_cast<size_t>(step.slot)];
  if (const absl::Status status = store_->Evict(slot); !status.ok()) {
    return absl::InternalError(absl::StrCat("expert offload: a plan that does not hold together: ", status.message()));
  }
  if (step.kind == offload::PlanStep::kDrop) return absl::OkStatus();
  const bool prefetch = step.kind == offload::PlanStep::kPrefetch;
  const absl::Status status =
      store_->StartCopy(IdOf(step.key), slot, prefetch ? CopyPriority::kPrefetch : CopyPriority::kDemand);
  // Demand has the last slot: RunWave copies the expert when it is used.
  return prefetch && absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

// Computes the first use and the following ones whose experts are present.
absl::Status ExpertOffload::RunWave(UnderWay* plan, Compute compute) {
  std::vector<ExpertId> ids;
  std::vector<size_t> slots;  // of the layout
  size_t taken = 0;
  for (const offload::PlanStep& step : plan->steps) {
    if (step.kind != offload::PlanStep::kUse) break;
    const ExpertId id = IdOf(step.key);
    const SlotState state = store_->StateOf(id);
    if (taken > 0 && state != SlotState::kFilled) break;
    if (state == SlotState::kFree) {
      RETURN_IF_ERROR(Do({.kind = offload::PlanStep::kCopy, .key = step.key, .slot = step.slot}));
    }
    ids.push_back(id);
    slots.push_back(static_cast<size_t>(slots_[static_cast<size_t>(step.key % shape_.num_experts)]));
    ++taken;
  }
  ASSIGN_OR_RETURN(ExpertLease lease, store_->Acquire(ids, plan->deadline));
  std::fill(gate_up_.begin(), gate_up_.end(), nullptr);
  std::fill(down_.begin(), down_.end(), nullptr);
  for (size_t i = 0; i < slots.size(); ++i) {
    gate_up_[slots[i]] = &lease.gate_up(static_cast<int64_t>(i));
    down_[slots[i]] = &lease.down(static_cast<int64_t>(i));
  }
  ++waves_;
  RETURN_IF_ERROR(compute(gate_up_, down_));
  RETURN_IF_ERROR(lease.ReleaseBehind(plan->stream));
  plan->steps.erase(plan->steps.begin(), plan->steps.begin() + static_cast<int64_t>(taken));
  return absl::OkStatus();
}

}  // namespace switchyard::moe
