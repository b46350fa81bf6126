// Sums rows of the ranks of a group, in rank order: of 16-bit rows in fp32, rounded once.  The same bits on all ranks.
// One sum at a time: Start → Finish.  On hosts; thread-compatible.  Errors: the communicator's.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class RowSum {
 public:
  // rows: of the same shape on all ranks, contiguous; they stay until Finish, which replaces them by the sum.
  absl::Status Start(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                     const TensorView& rows);
  absl::Status Finish(const Stream& stream);
  // Gives up what is under way after an error (which ends the group).
  void Drop() { work_.reset(); }

 private:
  TensorView rows_, values_;  // values_: what is added, rows_ or a copy in fp32
  RowScratch memory_;
  std::unique_ptr<comm::Work> work_;
};

}  // namespace switchyard::moe
