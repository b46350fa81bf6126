// Tags that say what a collective is for.  Ranks that launch two collectives of one shape in different orders so get an
// error that names both.  Pure.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::comm {

enum class CallUse : uint8_t {
  kNumber,  // the caller's own
  kDispatchCounts,
  kDispatch,
  kCombine,
  kOutputGradients,  // of backward: as dispatch
  kInputGradients,   // as combine
  kCapacityCounts,
  kDecisionGather,
  kDecision,
  kRepack,
  kRowGather,  // among shards or copies
  kRowSum,     // likewise
  kGradientSum,
  kReplicaSum,  // of the gradients of experts
  kGivenRows,
  kLinkMeasure,
};
inline constexpr int kNumCallUses = 16;

inline constexpr int kCallLayers = 1 << 14, kCallParts = 1 << 14;

// layer: its number among the MoE layers; for kRepack, among all layers.  part: the number of the call among the
// layer's calls of this use, such as a chunk's.  Both are taken modulo kCallLayers and kCallParts.  Tags below 1 << 28
// are a caller's own numbers; 0: none.
uint32_t CallTag(CallUse use, int64_t layer, int64_t part = 0);
// For uses that have a number instead of a layer: kGradientSum, kReplicaSum, kGivenRows, kLinkMeasure.  Modulo 1 << 28.
uint32_t NumberedTag(CallUse use, int64_t number);
// "for the dispatch of MoE layer 3, part 1", "for the sum of gradients 12", "with tag 12"
std::string CallPurpose(uint32_t tag);

}  // namespace switchyard::comm
