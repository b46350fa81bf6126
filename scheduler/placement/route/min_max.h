// How many rows each replica takes so that the busiest device has the fewest: exact, in integers.
//
// A flow problem on the graph of experts and devices.  Rows start somewhere, and are pushed from devices above the
// bound to devices below it, along shortest paths of shared experts.  Where no path is left, the devices reached form a
// closed set: their mean bounds every split, and the search goes on with it.  The first bound that holds is the optimum
// (Newton's method on the parametric minimum cut).  Pure and deterministic; O(P) a push.  The unit of rows is the
// caller's: whole rows or fixed point (popularity.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/route/replica_index.h"

namespace switchyard::placement {

struct MinMaxLoads {
  int64_t busiest = 0;         // rows of the busiest device: the least possible
  std::vector<int64_t> rows;   // [P] by replica
  std::vector<int64_t> loads;  // [R]
};

// From the rows of each expert [E] alone.  REQUIRES: rows >= 0.
MinMaxLoads MinimizeBusiest(const ReplicaIndex& replicas, absl::Span<const int64_t> expert_rows);

// From a split that is valid already, [P] by replica: moves only what has to move.
MinMaxLoads MinimizeBusiestFrom(const ReplicaIndex& replicas, std::vector<int64_t> replica_rows);

// A good start: adds each expert's rows [E] to its replicas' in `replica_rows` [P], least loaded device first.
void PourRows(const ReplicaIndex& replicas, absl::Span<const int64_t> expert_rows, absl::Span<int64_t> replica_rows);

}  // namespace switchyard::placement
