// A copy of what a checkpoint keeps of a rank's parameters, so that training goes on while it is written.  The first
// Take allocates it.  Not for offloaded parameters, which it would bring into memory.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {

class ParameterSnapshot {
 public:
  // What Take will allocate; 0 once it has, for as long as the blocks are the same.
  int64_t BytesToTake(const Parameters& parameters, int rank) const;
  // Copies masters and moments of the blocks that this rank writes (WritesBlock).  Errors: ResourceExhausted.
  absl::Status Take(const Stream& stream, const Parameters& parameters, int rank);
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }

 private:
  std::vector<ParameterBlock> blocks_;
};

}  // namespace switchyard::train
