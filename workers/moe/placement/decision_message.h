// A layer's decision as device 0 sends it to the others in the mode `lina`: 32-bit words in the machine's byte
// order.
//
//   number (2 words), layer, demand, number of prefetch plans and they, number of awaited copies and they (device,
//   slot, decision in 2 words), number of offsets and they, number of pieces and they (device, rows)
//   a plan: layer, number of changes, they (device, slot, expert)
// Digest and reasons are not sent.  Ranks are of one machine type.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"

namespace switchyard::moe {

std::vector<int32_t> EncodeDecision(const placement::LayerDecision& decision);

struct DecisionBounds {
  int num_layers = 0;
  int num_experts = 0;
  int num_ranks = 0;
};
// Internal: the words do not hold together.  Slots are the caller's to check.
absl::StatusOr<placement::LayerDecision> DecodeDecision(absl::Span<const int32_t> words, const DecisionBounds& bounds);

// The digest of the outputs alone: equal on the rank that decided and on those that received the decision.
placement::DecisionDigest DigestOfSaid(const placement::LayerDecision& decision);

}  // namespace switchyard::moe
