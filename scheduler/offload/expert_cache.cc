#include "scheduler/offload/expert_cache.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

constexpr absl::string_view kStateNames[kNumExpertStates] = {"host only", "prefetching", "demanded", "resident"};

}  // namespace

ExpertCache::ExpertCache(const OffloadShape& shape)
    : shape_(shape),
      states_(shape.num_keys(), ExpertState::kHostOnly),
      slot_of_(shape.num_keys(), -1),
      key_in_(shape.num_slots, kNoExpert) {}

void ExpertCache::MoveTo(ExpertKey key, ExpertState state) {
  const bool may = kExpertMay[static_cast<int>(states_[key])][static_cast<int>(state)];
  if (!may) {
    internal::CheckFailed(__FILE__, __LINE__, "an expert's state may change so",
                          absl::StrCat("expert ", key, ": ", kStateNames[static_cast<int>(states_[key])], " to ",
                                       kStateNames[static_cast<int>(state)]));
  }
  states_[key] = state;
}

void ExpertCache::StartCopy(ExpertKey key, int32_t slot, bool demand) {
  if (key_in_[slot] != kNoExpert) Evict(key_in_[slot]);
  MoveTo(key, demand ? ExpertState::kDemanded : ExpertState::kPrefetching);
  slot_of_[key] = slot;
  key_in_[slot] = key;
}

void ExpertCache::Evict(ExpertKey key) {
  MoveTo(key, ExpertState::kHostOnly);
  key_in_[slot_of_[key]] = kNoExpert;
  slot_of_[key] = -1;
}

}  // namespace switchyard::offload
