// Minimum-cost assignment, and with it the relabelling of a placement's devices by which the fewest experts move.
//
// Balancers that look at loads alone number their devices afresh each time.  Pure and deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// cost [n, n] row-major, |cost| < 2^40; n <= 2^20.  Returns [n]: the column of each row, each column once, so that the
// sum of costs is minimal.  Shortest augmenting paths with potentials (Jonker and Volgenant, 1987): O(n^3).
std::vector<int> MinCostAssignment(absl::Span<const int64_t> cost, int n);

// `to` with its devices renumbered so that the fewest experts are new on their device, and those that stay in their
// slots (KeepSlots).  REQUIRES: the same number of devices; in `to` no expert twice on a device.
Placement MatchDevices(const Placement& from, const Placement& to);

}  // namespace switchyard::placement
