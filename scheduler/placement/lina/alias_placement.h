// Experts to devices so that the busiest gets just the mean: Walker's alias tables, used as a placement.
//
// With as many experts as devices the alias method (Walker 1977; Vose 1991, as used for sampling) fills each device to
// exactly the mean with at most two experts: its own and one other.  With E = m N each device has m experts of its own,
// and devices below the mean are topped up from others: m + 1 slots (scheduler/PAPERS.md, "Alias placement").
// With one spare slot a device takes from one that will be topped up itself, where it can: that chains experts and
// devices, and costs half as much where the estimate was wrong (README.md).  Further slots hold replicas that an exact
// estimate does not need: of the experts with the most rows a replica, on devices that share little with their others,
// so that a split by actual counts (split.h) finds ways around an error.  The worse the estimate, the more alike they
// treat all experts.
// Pure, integers only, ties by id.  Does not decide whether moving pays (layer_decision.h).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {

struct FillTarget {
  absl::Span<const int64_t> estimate;  // [E] >= 0
  // The estimate's usual total-variation distance from what comes, in 1 / kRow; from a half on the estimate is ignored.
  int64_t error = 0;
  bool hedge = true;  // false: only what the mean needs; other slots keep what `present` has there
};

// Fills the empty slots of `base`, first with what the mean needs, then with hedges.  Of equals it takes what `present`
// has on that device, in its slot, so that less is copied; a present without slots = nothing is there.
// REQUIRES: CheckPlacement(base) is OK; present has base's devices, and base's experts in base's slots.
Placement FillEmptySlots(const Placement& base, const Placement& present, const FillTarget& target);

}  // namespace switchyard::placement
