// The experts that a rank's device slots hold, and the states of an expert: the cache's state machine.
//
// Never copies, waits or asks for the time.  A policy's decisions alone move it (cache_policy.h).
// Thread-compatible.  Does not choose (wave_planner.h, the policies).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

enum class ExpertState : uint8_t { kHostOnly, kPrefetching, kDemanded, kResident };
inline constexpr int kNumExpertStates = 4;

//                                            Host   Prefetch Demand Resident
inline constexpr std::array<std::array<bool, kNumExpertStates>, kNumExpertStates> kExpertMay = {{
    {false, true, true, false},   // HostOnly: its weights are in host memory only
    {true, false, true, true},    // Prefetching: it is copied, and nobody waits
    {false, false, false, true},  // Demanded: it is copied, and this layer waits: it is never given up
    {true, false, false, false},  // Resident
}};
static_assert(!kExpertMay[static_cast<int>(ExpertState::kDemanded)][static_cast<int>(ExpertState::kHostOnly)]);

class ExpertCache {
 public:
  explicit ExpertCache(const OffloadShape& shape);

  const OffloadShape& shape() const { return shape_; }
  ExpertState state(ExpertKey key) const { return states_[key]; }
  // -1 = host only.
  int32_t SlotOf(ExpertKey key) const { return slot_of_[key]; }
  bool Holds(ExpertKey key) const { return slot_of_[key] >= 0; }
  // kNoExpert = empty.
  ExpertKey KeyIn(int32_t slot) const { return key_in_[slot]; }

  // A copy of `key` into `slot` starts; what the slot held is evicted.
  // REQUIRES: key is host only; the slot's expert may become host only.
  void StartCopy(ExpertKey key, int32_t slot, bool demand);
  // A layer waits for the copy.  REQUIRES: prefetching.
  void Demand(ExpertKey key) { MoveTo(key, ExpertState::kDemanded); }
  // The copy is over.  REQUIRES: being copied.
  void Arrive(ExpertKey key) { MoveTo(key, ExpertState::kResident); }
  // REQUIRES: resident or prefetching.
  void Evict(ExpertKey key);

 private:
  void MoveTo(ExpertKey key, ExpertState state);

  OffloadShape shape_;
  std::vector<ExpertState> states_;  // [L * E]
  std::vector<int32_t> slot_of_;     // [L * E]
  std::vector<ExpertKey> key_in_;    // [slots]
};

}  // namespace switchyard::offload
