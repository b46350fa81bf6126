// Which experts a rank's device slots hold, and what may happen to one: the cache's state machine.
//
// It never copies, waits or asks for the time.  A policy moves it by decisions alone (cache_policy.h: what a decision
// takes for copied is what its virtual clock says); whoever really copies may keep a second one, moved by events.
// Thread-compatible.  Does not do: choosing (wave_planner.h, the policies).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

enum class ExpertState : uint8_t { kHostOnly, kPrefetching, kDemanded, kResident, kPinned };
inline constexpr int kNumExpertStates = 5;
absl::string_view ExpertStateName(ExpertState state);

//                                            Host   Prefetch Demand Resident Pinned
inline constexpr std::array<std::array<bool, kNumExpertStates>, kNumExpertStates> kExpertMay = {{
    {false, true, true, false, false},   // HostOnly: its weights are in host memory only
    {true, false, true, true, false},    // Prefetching: being copied, nobody waits
    {false, false, false, true, false},  // Demanded: being copied, this layer waits: never given up
    {true, false, false, false, true},   // Resident
    {false, false, false, true, false},  // Pinned: this layer computes with it
}};
static_assert(!kExpertMay[static_cast<int>(ExpertState::kPinned)][static_cast<int>(ExpertState::kHostOnly)]);
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
  int num_empty() const { return num_empty_; }
  // The lowest empty slot of [begin, end), -1 = none.
  int32_t EmptySlot(int32_t begin, int32_t end) const;

  // A copy of `key` into `slot` starts; what the slot held is evicted.
  // REQUIRES: key is host only; the slot's expert may become host only.
  void StartCopy(ExpertKey key, int32_t slot, bool demand);
  // A layer waits for the copy.  REQUIRES: prefetching.
  void Demand(ExpertKey key) { MoveTo(key, ExpertState::kDemanded); }
  // The copy is over.  REQUIRES: being copied.
  void Arrive(ExpertKey key) { MoveTo(key, ExpertState::kResident); }
  // REQUIRES: resident, pinned respectively.
  void Pin(ExpertKey key) { MoveTo(key, ExpertState::kPinned); }
  void Unpin(ExpertKey key) { MoveTo(key, ExpertState::kResident); }
  // REQUIRES: resident or prefetching.
  void Evict(ExpertKey key);

 private:
  void MoveTo(ExpertKey key, ExpertState state);

  OffloadShape shape_;
  std::vector<ExpertState> states_;  // [L * E]
  std::vector<int32_t> slot_of_;     // [L * E]
  std::vector<ExpertKey> key_in_;    // [slots]
  int num_empty_;
};

}  // namespace switchyard::offload
