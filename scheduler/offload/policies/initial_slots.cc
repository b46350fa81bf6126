#include "scheduler/offload/policies/initial_slots.h"

#include <algorithm>
#include <numeric>

#include "scheduler/base/check.h"

namespace switchyard::offload {

std::vector<ExpertKey> PopularExperts(const OffloadShape& shape, const std::vector<SlotRange>& ranges,
                                      absl::Span<const int64_t> popularity) {
  SY_CHECK_EQ(popularity.size(), static_cast<size_t>(shape.num_keys()));
  std::vector<ExpertKey> keys(shape.num_keys());
  std::iota(keys.begin(), keys.end(), 0);
  std::stable_sort(keys.begin(), keys.end(), [&](ExpertKey a, ExpertKey b) { return popularity[a] > popularity[b]; });
  std::vector<ExpertKey> slots(shape.num_slots, kNoExpert);
  std::vector<int32_t> next(shape.num_slots + 1, 0);  // by where a range begins
  for (const SlotRange& range : ranges) next[range.begin] = range.begin;
  for (const ExpertKey key : keys) {
    if (popularity[key] == 0) break;
    const SlotRange& range = ranges[shape.LayerOf(key)];
    if (next[range.begin] < range.end) slots[next[range.begin]++] = key;
  }
  return slots;
}

void FillSlots(absl::Span<const ExpertKey> initial, ExpertCache* cache) {
  for (size_t slot = 0; slot < initial.size(); ++slot) {
    if (initial[slot] == kNoExpert) continue;
    cache->StartCopy(initial[slot], static_cast<int32_t>(slot), true);
    cache->Arrive(initial[slot]);
  }
}

}  // namespace switchyard::offload
