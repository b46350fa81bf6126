#include "scheduler/placement/per_step/agreed_policy.h"

#include <algorithm>
#include <utility>

#include "scheduler/placement/route/layer_time.h"
#include "scheduler/placement/route/min_max.h"

namespace switchyard::placement {
namespace {

// Of estimated rows, in 1 / kRow, on one device.
int64_t TimeOf(int64_t rows, const LayerCosts& costs) {
  return static_cast<int64_t>(
      std::min<__int128>(static_cast<__int128>(rows) * costs.row_ps / popularity::kRow, INT64_MAX));
}

// Of a layer so far ahead, by so many copies on one device.
int64_t DelayOf(int copies, int layers_ahead, const LayerCosts& costs) {
  const __int128 unhidden =
      static_cast<__int128>(copies) * costs.copy_ps - static_cast<__int128>(layers_ahead) * costs.layer_ps;
  return static_cast<int64_t>(std::clamp<__int128>(unhidden, 0, INT64_MAX));
}

}  // namespace

SlotPlan AgreedPolicy::FineTune(const LayerInputs& inputs) {
  const LayerCosts& costs = shape().costs;
  const SlotTable& now = table(inputs.layer);
  const std::vector<int64_t> rows = inputs.counts.OfExperts();
  split_ = SplitByCounts(inputs.counts, now.replicas(), costs);
  MoveQuestion question = {.num_devices = inputs.counts.num_ranks,
                           .present_ps = LayerTime(split_, costs),
                           .even_enough = shape().even_enough};
  for (const int64_t of_expert : rows) question.total_ps += costs.OfExpert(of_expert);
  // At best all are done at once, one of them with an expert that had to be copied.
  question.candidate_ps = question.total_ps / question.num_devices;
  question.delayed_ps = costs.copy_ps - question.candidate_ps;
  SlotPlan plan{.layer = inputs.layer, .choice = ChooseMove(question)};
  if (!plan.choice.Moves()) return plan;
  const Placement next =
      FillEmptySlots(shape().residents[inputs.layer], now.placement(), {.estimate = rows, .hedge = false});
  std::vector<SlotChange> changes = ChangesBetween(now.placement(), next);
  SplitTable moved = SplitByCounts(inputs.counts, ReplicaIndex(next), costs);
  question.candidate_ps = LayerTime(moved, costs);
  question.delayed_ps = LayerTime(moved, costs, changes) - question.candidate_ps;
  plan.choice = ChooseMove(question);
  if (!plan.choice.Moves()) return plan;
  plan.changes = std::move(changes);
  split_ = std::move(moved);
  return plan;
}

SplitTable AgreedPolicy::Split(const LayerInputs&) { return std::move(split_); }

SlotPlan AgreedPolicy::Prepare(const LayerEstimate& estimate, int layers_ahead) {
  const LayerCosts& costs = shape().costs;
  FillTarget target = {.estimate = estimate.popularity,
                       .error = shape().mode == PlacementMode::kOracle ? 0 : error(estimate.layer)};
  MoveQuestion question = {
      .num_devices = table(estimate.layer).placement().num_devices(),
      .present_ps = TimeOf(MinimizeBusiest(table(estimate.layer).replicas(), estimate.popularity).busiest, costs),
      .horizon = shape().horizon,
      .even_enough = shape().even_enough};
  question.total_ps = TimeOf(popularity::TotalOf(estimate.popularity), costs);
  // At best the busiest device comes down to the mean, for one copy.
  question.candidate_ps = question.total_ps / question.num_devices;
  question.delayed_ps = DelayOf(1, layers_ahead, costs);
  SlotPlan plan{.layer = estimate.layer, .choice = ChooseMove(question)};
  if (!plan.choice.Moves()) return plan;
  plan = Try(estimate, target, layers_ahead, question);
  if (plan.choice.Moves() && plan.choice.delayed_ps == 0) return plan;
  // Copies of hedges delay the layer; those that the mean needs alone may delay it less, or not at all.
  target.hedge = false;
  SlotPlan less = Try(estimate, target, layers_ahead, question);
  const auto net = [](const MoveChoice& choice) { return choice.saved_ps - choice.delayed_ps; };
  return net(less.choice) > net(plan.choice) ? std::move(less) : std::move(plan);
}

SlotPlan AgreedPolicy::Try(const LayerEstimate& estimate, const FillTarget& target, int layers_ahead,
                           MoveQuestion question) const {
  const LayerCosts& costs = shape().costs;
  const Placement& present = table(estimate.layer).placement();
  const Placement next = FillEmptySlots(shape().residents[estimate.layer], present, target);
  std::vector<SlotChange> changes = ChangesBetween(present, next);
  question.candidate_ps = TimeOf(MinimizeBusiest(ReplicaIndex(next), estimate.popularity).busiest, costs);
  question.delayed_ps = DelayOf(MostCopies(changes), layers_ahead, costs);
  SlotPlan plan{.layer = estimate.layer, .choice = ChooseMove(question)};
  if (plan.choice.Moves()) plan.changes = std::move(changes);
  return plan;
}

}  // namespace switchyard::placement
