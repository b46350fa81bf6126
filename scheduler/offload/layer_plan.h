// The plan of one rank for its device slots in one MoE layer: the seam between a cache policy, which decides, and the
// expert store or the simulator, which carry it out.
//
// A plan is a program.  Its steps are in order for any one slot; different slots run at the same time:
//   copy      starts a copy of an expert from host memory into a slot, whose content is gone.  It begins when every
//             earlier `use` of the slot is over; a copy into the same slot that nothing uses is given up
//   use       computes the layer's rows of that expert, when its copy (of this or an earlier plan) is over.  The uses
//             of a plan run one after another, in this order
//   prefetch  as copy, but any copy that a use of this layer waits for goes first, at the next chunk boundary
//   drop      empties the slot; a copy into it stops at the next chunk boundary
// A use of an expert whose prefetch is not over makes that prefetch a demand copy, ahead of those that its plan starts.
// So a plan needs no answer from the machine: a late copy is waited for and nothing else.
// Plain data, compares by value.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::offload {

// An expert of a layer: layer * num_experts + expert.  -1 = none.
using ExpertKey = int32_t;
inline constexpr ExpertKey kNoExpert = -1;

struct OffloadShape {
  int num_layers = 0;   // MoE layers
  int num_experts = 0;  // experts of this rank in each layer, E
  int num_slots = 0;    // device slots of this rank, of one expert each, shared by all layers
  int token_uses = 0;   // of these experts that a token needs in a layer, in the mean; 0 = not known
  int num_keys() const { return num_layers * num_experts; }
  int LayerOf(ExpertKey key) const { return key / num_experts; }
};

struct PlanStep {
  enum Kind : uint8_t { kCopy, kUse, kPrefetch, kDrop };
  Kind kind = kUse;
  ExpertKey key = kNoExpert;
  int32_t slot = -1;
  bool operator==(const PlanStep& other) const = default;
};

struct LayerPlan {
  std::vector<PlanStep> steps;
  bool operator==(const LayerPlan& other) const = default;
};

}  // namespace switchyard::offload
