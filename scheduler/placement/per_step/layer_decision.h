// The per-step balancer: what one layer of one batch does, and what the next layer's slots should hold.
//
// Every rank calls Decide once a layer and step, in the same order, after its gate, with the gathered counts.  From
// these integers, the step's costs, and a table of slots that only decisions advance, every rank reaches the
// same decision, without a message.  It does not depend on a clock, free memory, or the completion of a copy: a late
// copy is waited for (`awaited`), its rows never go elsewhere.  A hash of each decision rides in the next gather.
// With the mode "lina" device 0 alone calls it and sends what it decides.
// Thread-compatible: one owner.  Deterministic.  Does not copy, send or measure; does not change resident slots (the
// paper's modes use all slots).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/per_step/decision_digest.h"
#include "scheduler/placement/per_step/phase_two.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/placement/route/slot_table.h"
#include "scheduler/placement/route/split.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {

// Constants of a group; costs until SetCosts.
struct PolicyShape {
  PlacementMode mode = PlacementMode::kAgreed;
  int top_k = 1;
  // By layer: resident experts in their slots, empty slots for the per-step balancer.  Every expert is resident
  // somewhere.  In the paper's modes all devices have as many slots.
  std::vector<Placement> residents;  // [L]
  LayerCosts costs = {};
  // The busiest may exceed the mean by this share of it before weights move.
  int64_t even_enough = popularity::kRow / 64;
};

// The expected rows of a coming layer: rows of all ranks, fixed point (popularity.h).
struct LayerEstimate {
  int layer = 0;                         // up to the deciding layer = in the next step
  absl::Span<const int64_t> popularity;  // [E]
};

struct LayerInputs {
  int64_t step = 0;
  int layer = 0;
  RowCounts counts;                           // [R, E] of this layer
  absl::Span<const LayerEstimate> estimates;  // may be empty; the paper's modes place by that of the next layer
};

struct SlotPlan {
  int layer = 0;
  MoveChoice choice = {};                // why, where a cost was asked
  std::vector<SlotChange> changes = {};  // copies, by device and slot
};

struct LayerDecision {
  int64_t number = 0;  // counts decisions from 0
  int layer = 0;
  SplitTable split;                  // of this layer's rows
  SlotPlan demand;                   // phase 2: to be copied before these experts' rows run
  std::vector<AwaitedCopy> awaited;  // copies that this layer's experts wait for, those of `demand` among them
  std::vector<SlotPlan> prefetch;    // phase 1: by estimate
  DecisionDigest digest;
};

class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;

  // REQUIRES: 0 <= layer < L; counts of R ranks and E experts; estimates of layers in [0, L), [E] each, >= 0.
  LayerDecision Decide(const LayerInputs& inputs);

  // On every rank before the same decision.
  void SetCosts(const LayerCosts& costs) { shape_.costs = costs; }

  const PolicyShape& shape() const { return shape_; }
  // Before the first decision: what the slots hold when the group begins.  static+spare, agreed and auto begin with
  // replicas spread evenly, the others with the residents alone.
  const SlotTable& table(int layer) const { return tables_[layer]; }

 protected:
  // `spread`: empty slots start with replicas spread evenly.
  PlacementPolicy(PolicyShape shape, bool spread);

  // Phase 2: what has to change before this layer runs.
  virtual SlotPlan FineTune(const LayerInputs& inputs) = 0;
  virtual SplitTable Split(const LayerInputs& inputs) = 0;
  // Phase 1: what should change for the next layer.
  virtual SlotPlan Prepare(const LayerEstimate& estimate) { return {.layer = estimate.layer}; }

  // The last estimate of a layer, empty if there was none since it last ran.
  const popularity::Popularity& EstimateOf(int layer) const { return estimates_[layer]; }

 private:
  PolicyShape shape_;
  std::vector<SlotTable> tables_;                  // [L]
  std::vector<popularity::Popularity> estimates_;  // [L]
  int64_t number_ = 0;
};

// InvalidArgument: no layers, layers of different shapes, a resident placement with a breach.
absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakePlacementPolicy(PolicyShape shape);

}  // namespace switchyard::placement
