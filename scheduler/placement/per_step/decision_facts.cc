#include "scheduler/placement/per_step/decision_facts.h"

#include <vector>

namespace switchyard::placement {
namespace {

using Field = DecisionField;

void MixChanges(DecisionDigest& digest, Field field, const SlotPlan& plan) {
  digest.Mix(field, plan.layer);
  digest.Mix(field, static_cast<int64_t>(plan.choice.reason));
  for (const SlotChange& change : plan.changes) {
    digest.Mix(field, absl::MakeConstSpan({change.device, change.slot, change.expert}));
  }
}

// Where one (rank, expert) ends and the next begins follows from the counts, which are mixed, too.
void MixSplit(DecisionDigest& digest, const SplitTable& split) {
  std::vector<int64_t> pieces;
  for (int rank = 0; rank < split.num_ranks(); ++rank) {
    for (int expert = 0; expert < split.num_experts(); ++expert) {
      for (const SplitPiece& piece : split.Pieces(rank, expert)) {
        pieces.push_back(int64_t{piece.device} << 32 | piece.rows);
      }
    }
  }
  digest.Mix(Field::kSplit, pieces);
}

void MixTable(DecisionDigest& digest, const SlotTable& table) {
  for (int device = 0; device < table.placement().num_devices(); ++device) {
    digest.Mix(Field::kSlots, absl::MakeConstSpan(table.placement().slots[device]));
    digest.Mix(Field::kSlots, absl::MakeConstSpan(table.in_flight()[device]));
  }
}

}  // namespace

DecisionDigest DigestOf(const DecisionFacts& facts) {
  const PolicyShape& shape = facts.shape;
  const LayerInputs& inputs = facts.inputs;
  const LayerDecision& decision = facts.decision;
  DecisionDigest digest;
  digest.Mix(Field::kConstants,
             absl::MakeConstSpan({static_cast<int64_t>(shape.mode), int64_t{shape.top_k}, shape.costs.copy_ps,
                                  shape.costs.weights_ps, shape.costs.row_ps, shape.even_enough}));
  digest.Mix(Field::kStep, inputs.step);
  digest.Mix(Field::kLayer, inputs.layer);
  digest.Mix(Field::kNumber, decision.number);
  digest.Mix(Field::kCounts, inputs.counts.rows);
  for (const LayerEstimate& estimate : inputs.estimates) {
    digest.Mix(Field::kEstimates, estimate.layer);
    digest.Mix(Field::kEstimates, estimate.popularity);
  }
  MixTable(digest, facts.table);
  MixSplit(digest, decision.split);
  for (const AwaitedCopy& copy : decision.awaited) {
    digest.Mix(Field::kAwaited, absl::MakeConstSpan({int64_t{copy.device}, int64_t{copy.slot}, copy.decision}));
  }
  MixChanges(digest, Field::kDemand, decision.demand);
  for (const SlotPlan& plan : decision.prefetch) MixChanges(digest, Field::kPrefetch, plan);
  return digest;
}

}  // namespace switchyard::placement
