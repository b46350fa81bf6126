#include "scheduler/placement/per_step/agreed_policy.h"

#include <utility>

#include "scheduler/placement/lina/alias_placement.h"
#include "scheduler/placement/route/layer_time.h"

namespace switchyard::placement {

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
  const Placement next = FillEmptySlots(shape().residents[inputs.layer], now.placement(), rows);
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

}  // namespace switchyard::placement
