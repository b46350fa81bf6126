// Phase 1 of Lina's inference scheduling: experts to devices from their estimated popularity, Eq. (1).
//
// Source: Lina (ATC '23), section 5.2; scheduler/PAPERS.md, item 6, says how its gaps are filled.  N devices, n_e = N *
// share of e in the estimate (of each token the estimator counts its top-k experts alone).
//   1. n_e >= 1: floor(n_e) devices of its own.
//   2. 0 < n_e < 1: packed first-fit-decreasing, size n_e, a bin is a device, at most 4 in one where E = N (the paper),
//      else max(4, ceil(E / N) + 1).  If that takes more devices than are left, each goes where the least is.
//   3. Devices still free: one more for experts of n_e >= 1, largest fraction first.
//   4. Experts that nobody is expected to choose: evenly over devices still free, else where the least is.
// Every expert is hosted: where slots would not do, experts lose replicas, those with the most first.  Ties by id.
// A baseline: with the true counts, too, the busiest device keeps about 1.5 times the mean, as 2.9 becomes 2
// (scheduler/PAPERS.md, "Alias placement").  Pure, integers only.  Devices are numbered afresh each time.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// N devices of slots_per_device slots.  estimate [E] >= 0; all zero counts as even.
// InvalidArgument: no devices, or fewer slots than experts.
absl::StatusOr<Placement> AllocateAsPaper(absl::Span<const int64_t> estimate, int num_devices, int slots_per_device);

}  // namespace switchyard::placement
