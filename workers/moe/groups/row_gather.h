// Gathers rows of matrices among the ranks of a group: each rank sends its own, as many as it has, and gets
// everybody's. One gather at a time: Start → Finish → Place for each rank.  On hosts; thread-compatible. Errors: the
// communicator's, Internal (a rank sent another number of bytes than its rows have; the group is aborted).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class RowGather {
 public:
  // Sends rows mine[i] of each matrix; both must stay until the last Place.
  absl::Status Start(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                     std::vector<TensorView> matrices, absl::Span<const int32_t> mine);
  absl::Status Finish();
  const std::vector<TensorView>& matrices() const { return matrices_; }  // of Start
  // How many rows came from the rank, or went there from this one.
  absl::StatusOr<int64_t> RowsOf(int rank) const;
  // Row i of the rank's becomes row at[i] of matrix m of `to`, for all m.
  absl::Status Place(int rank, absl::Span<const int32_t> at, absl::Span<const TensorView> to) const;
  // Gives up what is under way after an error (which ends the group).
  void Drop() { work_.reset(); }

 private:
  int64_t BytesOfRow() const;  // of one row of all matrices

  comm::Communicator* among_ = nullptr;
  std::vector<TensorView> matrices_;
  absl::Span<const int32_t> mine_;
  std::unique_ptr<comm::Work> work_;
};

}  // namespace switchyard::moe
