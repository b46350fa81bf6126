// The tag of a collective says what it is for, so that two of one shape which ranks launch in different orders are told
// apart, and named by what they are for.  Pure.
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
  kGradientSum,
  kReplicaSum,  // of the gradients of experts
  kGivenRows,
};
inline constexpr int kNumCallUses = 13;

inline constexpr int kCallLayers = 1 << 14, kCallParts = 1 << 14;

// layer: of the model's MoE layers, but for kRepack, of all; part: which of the layer's calls of this use, as a chunk.
// What is too large for its bits is taken modulo kCallLayers and kCallParts.  Below 1 << 28 are a caller's own numbers;
// 0: none.
uint32_t CallTag(CallUse use, int64_t layer, int64_t part = 0);
// Of what has no layer but a number: kGradientSum, kReplicaSum, kGivenRows.  Modulo 1 << 28.
uint32_t NumberedTag(CallUse use, int64_t number);
// "for the dispatch of MoE layer 3, part 1", "for the sum of gradients 12", "with tag 12"
std::string CallPurpose(uint32_t tag);

}  // namespace switchyard::comm
