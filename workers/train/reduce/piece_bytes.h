// The size of the pieces into which a job's sums are cut, by how fast its links are: as many bytes as pass in 5 ms
// (jobs::PieceBytesOf), or in eight times what a message takes that has none, where that is longer.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {

// Measures the links (workers/comm/group/link_fit.h); the same on all ranks.  Collective, some tenths of a second.
// Errors: the communicator's.
absl::StatusOr<int64_t> MeasurePieceBytes(comm::Communicator* comm, absl::Time deadline);

}  // namespace switchyard::train
