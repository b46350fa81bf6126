// What every rank tells the others after a layer's gate: how many of its rows each expert has.
//
// One small all-gather of class all-to-all, so that its order among the exchanges is the schedule's.  Waits for the
// slowest gate of the group, which a dispatch would do, too.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/split.h"
#include "workers/moe/layer_placer.h"

namespace switchyard {

class RowCountGather {
 public:
  // Borrowed until the next call.  Errors: InvalidArgument (an expert id outside [-1, E), with its place), the
  // communicator's.  REQUIRES: rows.topk_idx is on the CPU.
  absl::StatusOr<RowCounts> Gather(const GatedRows& rows, int num_experts);

 private:
  std::vector<int32_t> counts_;  // [R, E]
};

}  // namespace switchyard
