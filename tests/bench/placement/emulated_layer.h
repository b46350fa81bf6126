// One MoE layer of a worker whose messages are real and whose compute is time that passes.
//
// Dispatch and combine move as many bytes as the rows have, by an all-to-all of the group; experts take a time by their
// rows, from when the last row is here.  So a layer takes what the slowest link and the busiest rank make of it.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tests/bench/placement/link_mesh.h"

namespace switchyard::bench {

struct LayerTimes {
  int64_t row_bytes = 0;       // of one row, each way
  absl::Duration row_compute;  // of one row on its expert
};

// The work of one rank in one layer.
struct LayerRows {
  std::vector<int64_t> sent;                        // [R] rows of this rank that rank r computes; the own ones stay
  std::vector<int64_t> received;                    // [R] rows of rank r that this rank computes
  int64_t late = 0;                                 // of received: their experts' weights are being copied ...
  absl::Time weights_ready = absl::InfinitePast();  // ... until then; the others run before
};

// Where the time of layers goes, summed.
struct PhaseTimes {
  absl::Duration gather, dispatch, compute, combine;  // gather: from the gate to the decision
};

class EmulatedLayer {
 public:
  EmulatedLayer(LinkMesh* mesh, const LayerTimes& times) : mesh_(mesh), times_(times) {}

  // Errors: the mesh's.
  absl::Status Run(const LayerRows& rows, PhaseTimes* phases);

 private:
  absl::Status Exchange(absl::Span<const int64_t> out_rows, absl::Span<const int64_t> in_rows);

  LinkMesh* const mesh_;
  const LayerTimes times_;
};

}  // namespace switchyard::bench
