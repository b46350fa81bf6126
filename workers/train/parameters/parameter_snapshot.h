// A copy of a rank's masters and moments, so that training continues while a checkpoint of them is written.  The first
// Take allocates it.  Not for offloaded parameters, which it would load into memory.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {

// The ranks that dense state is sharded over.
struct SnapshotRanks {
  comm::Communicator* comm = nullptr;
  absl::Duration limit = absl::Hours(1);  // the longest that they wait for each other
};

class ParameterSnapshot {
 public:
  // Bytes that Take will allocate; 0 if it has allocated them for the same blocks.
  int64_t BytesToTake(const Parameters& parameters, int rank) const;
  // Copies masters and moments of the blocks that this rank writes (WritesBlock).  Collective if dense state is
  // sharded, among `ranks`: each gets whole what it writes.  Errors: ResourceExhausted, the communicator's.
  absl::Status Take(const Stream& stream, const Parameters& parameters, int rank, const SnapshotRanks& ranks = {});
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }

 private:
  absl::Status TakeSharded(const Parameters& parameters, int rank, const SnapshotRanks& ranks);

  std::vector<ParameterBlock> blocks_;
};

}  // namespace switchyard::train
