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
#include "workers/comm/communicator.h"

namespace switchyard::bench {

struct LayerTimes {
  int64_t row_bytes = 0;       // of one row, each way
  absl::Duration row_compute;  // of one row on its expert
};

// What one rank does in one layer.
struct LayerRows {
  std::vector<int64_t> sent;                        // [R] rows of this rank that rank r computes; the own ones stay
  std::vector<int64_t> received;                    // [R] rows of rank r that this rank computes
  absl::Time weights_ready = absl::InfinitePast();  // no expert runs before
};

class EmulatedLayer {
 public:
  EmulatedLayer(Communicator* comm, const LayerTimes& times) : comm_(comm), times_(times) {}

  // Errors: the communicator's; Internal if a rank sent another number of bytes than its rows have.
  absl::Status Run(const LayerRows& rows);

 private:
  absl::Status Exchange(absl::Span<const int64_t> out_rows, absl::Span<const int64_t> in_rows);

  Communicator* const comm_;
  const LayerTimes times_;
};

// Sleeps to within some tens of microseconds; at once if it is past.
void SleepUntil(absl::Time when);
// By when collectives of a benchmark must be done.
absl::Time Soon();

}  // namespace switchyard::bench
