// The experts that slots hold before the first layer, by a profile.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/wave_planner.h"

namespace switchyard::offload {

// The experts that fill each range's slots, most popular first; ties to the smaller key.  Experts of popularity 0 fill
// none, so slots may stay empty.  popularity: [L * E]
std::vector<ExpertKey> PopularExperts(const OffloadShape& shape, const std::vector<SlotRange>& ranges,
                                      absl::Span<const int64_t> popularity);
// Marks the experts as resident.
void FillSlots(absl::Span<const ExpertKey> initial, ExpertCache* cache);

}  // namespace switchyard::offload
