// Experts to devices so that the busiest gets just the mean: Walker's alias tables, used as a placement.
//
// With as many experts as devices the alias method (Walker 1977; Vose 1991, as used for sampling) fills each device to
// exactly the mean with at most two experts: its own and one other.  With E = m N each device has m experts of its own,
// and devices below the mean are topped up from others: m + 1 slots (scheduler/PAPERS.md, "Alias placement").
// Pure, integers only, ties by id.  Does not decide whether moving pays (layer_decision.h).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// Fills empty slots of `base` with what the mean needs by these rows, [E] >= 0; of equals it takes what `present` has
// on that device, in its slot, so that less is copied.  Other slots keep what is there; a present without slots =
// nothing. REQUIRES: CheckPlacement(base) is OK; present has base's devices, and base's experts in base's slots.
Placement FillEmptySlots(const Placement& base, const Placement& present, absl::Span<const int64_t> rows);

// Fills all of them where nothing is known of rows: experts have as many replicas as each other, on devices that share
// few experts with their others, so that a split by counts (split.h) finds ways.
Placement SpreadReplicas(const Placement& base);

}  // namespace switchyard::placement
