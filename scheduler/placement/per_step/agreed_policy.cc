#include "scheduler/placement/per_step/agreed_policy.h"

#include <utility>

#include "scheduler/placement/route/min_max.h"

namespace switchyard::placement {

SlotPlan AgreedPolicy::FineTune(const LayerInputs& inputs) {
  const std::vector<int64_t> rows = inputs.counts.OfExperts();
  const int64_t busiest = MinimizeBusiest(table(inputs.layer).replicas(), rows).busiest;
  return Consider(inputs.layer, {.estimate = rows, .hedge = false}, {.present_busiest = busiest});
}

SplitTable AgreedPolicy::Split(const LayerInputs& inputs) {
  return SplitByCounts(inputs.counts, table(inputs.layer).replicas());
}

SlotPlan AgreedPolicy::Prepare(const LayerEstimate& estimate, int layers_ahead) {
  const int64_t busiest = MinimizeBusiest(table(estimate.layer).replicas(), estimate.popularity).busiest;
  const int64_t expected_error = shape().mode == PlacementMode::kOracle ? 0 : error(estimate.layer);
  return Consider(
      estimate.layer, {.estimate = estimate.popularity, .error = expected_error},
      {.unit = popularity::kRow, .present_busiest = busiest, .layers_ahead = layers_ahead, .horizon = shape().horizon});
}

SlotPlan AgreedPolicy::Consider(int layer, const FillTarget& target, MoveQuestion question) const {
  question.total_rows = popularity::TotalOf(target.estimate);
  question.num_devices = table(layer).placement().num_devices();
  question.even_enough = shape().even_enough;
  // At best the busiest device comes down to the mean, for one copy.
  question.candidate_busiest = question.total_rows / question.num_devices;
  question.copies = 1;
  SlotPlan plan{.layer = layer, .choice = ChooseMove(question, shape().costs)};
  if (!plan.choice.Moves()) return plan;
  plan = Try(layer, target, question);
  if (!target.hedge || (plan.choice.Moves() && plan.choice.delayed_ps == 0)) return plan;
  // Copies of hedges delay the layer; those that the mean needs alone may delay it less, or not at all.
  FillTarget frugal = target;
  frugal.hedge = false;
  SlotPlan less = Try(layer, frugal, question);
  const auto net = [](const MoveChoice& choice) { return choice.saved_ps - choice.delayed_ps; };
  return net(less.choice) > net(plan.choice) ? std::move(less) : std::move(plan);
}

SlotPlan AgreedPolicy::Try(int layer, const FillTarget& target, MoveQuestion question) const {
  const Placement& present = table(layer).placement();
  const Placement next = FillEmptySlots(shape().residents[layer], present, target);
  std::vector<SlotChange> changes = ChangesBetween(present, next);
  question.candidate_busiest = MinimizeBusiest(ReplicaIndex(next), target.estimate).busiest;
  question.copies = MostCopies(changes);
  SlotPlan plan{.layer = layer, .choice = ChooseMove(question, shape().costs)};
  if (plan.choice.Moves()) plan.changes = std::move(changes);
  return plan;
}

}  // namespace switchyard::placement
