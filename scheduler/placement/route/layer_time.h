// When a layer is done: the busiest device's time, in picoseconds, of a split and of copies that run meanwhile.
// Pure, integers only.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/split.h"

namespace switchyard::placement {

// A device computes the experts that it has while those of `copies` come, one after the other, and then these.
int64_t LayerTime(const SplitTable& split, const LayerCosts& costs, absl::Span<const SlotChange> copies = {});

}  // namespace switchyard::placement
