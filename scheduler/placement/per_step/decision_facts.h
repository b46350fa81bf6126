// The inputs, state and outputs of a decision that its digest covers.  What is left out may differ between ranks
// unnoticed until rows go astray.
#pragma once

#include "scheduler/placement/per_step/decision_digest.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/placement/route/slot_table.h"

namespace switchyard::placement {

struct DecisionFacts {
  const PolicyShape& shape;       // mode, top_k, costs, even_enough
  const LayerInputs& inputs;      // all of them
  const SlotTable& table;         // the layer's, after the decision
  const LayerDecision& decision;  // all but the digest
};

DecisionDigest DigestOf(const DecisionFacts& facts);

}  // namespace switchyard::placement
