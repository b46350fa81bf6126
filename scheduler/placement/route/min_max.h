// How many rows each replica takes so that the busiest device has the fewest: exact, in integers.
//
// A flow problem on the graph of experts and devices.  Rows start somewhere (for example where they are already), and
// are pushed from devices above the bound to devices below it, along shortest paths of shared experts.  Where no path
// is left the devices that were reached form a closed set: no row on them has a replica outside, so their mean is a
// bound for every split, and the search goes on with it.  The first bound that holds is the optimum (Newton's method on
// the parametric minimum cut); no bisection. Pure and deterministic; O(P) a push.  Units of rows are the caller's:
// whole rows or fixed point (popularity.h). Does not choose places (alias_placement.h) nor which of an expert's rows go
// where (split.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/route/replica_map.h"

namespace switchyard::placement {

struct MinMaxLoads {
  int64_t busiest = 0;         // rows of the busiest device: the least possible
  std::vector<int64_t> rows;   // [P] by replica
  std::vector<int64_t> loads;  // [R]
};

// From the rows of each expert [E] alone.  REQUIRES: rows >= 0.
MinMaxLoads MinimizeBusiest(const ReplicaMap& replicas, absl::Span<const int64_t> expert_rows);

// From a split that is valid already, [P] by replica: moves only what has to move.
MinMaxLoads MinimizeBusiestFrom(const ReplicaMap& replicas, std::vector<int64_t> replica_rows);

// Splits each expert's rows [E] over its replicas by adding them to `replica_rows` [P], least loaded device first:
// a good start.
void PourRows(const ReplicaMap& replicas, absl::Span<const int64_t> expert_rows, absl::Span<int64_t> replica_rows);

}  // namespace switchyard::placement
