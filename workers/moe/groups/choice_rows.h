// ChoiceRows: a row, and perhaps a number, for each of a layer's choices (t, k), where they come in pieces: what
// several exchanges returned, or what ranks with the same choices gather.  Added in top-k order whoever made them, so
// that bits are those of one exchange.  On hosts; thread-compatible.  Errors: RowGather's.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/groups/row_gather.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// Rows of an exchange, and where those of each of its choices are: S in a row, one for each shard; -1 = none.
struct ReturnedRows {
  TensorView rows;                     // [n, H]
  TensorView numbers;                  // [n, 1]; rank 0 = none
  absl::Span<const int32_t> slot_row;  // [choices * S]
  int64_t first_choice = 0;            // that slot_row begins with
  int num_shards = 1;                  // S
};

class ChoiceRows {
 public:
  // No choice has a row, numbers are 0.
  void Begin(int64_t tokens, int64_t top_k, int64_t hidden, DType dtype, bool numbers);
  // Keeps the rows of these choices; of several shards their sum, in AccDType, rounded once.
  absl::Status Put(const Stream& stream, absl::Span<const int32_t> choices, const ReturnedRows& returned);
  // lists[r]: the choices whose rows rank r has, the same on all ranks, in one order; borrowed until FinishGathers.
  // Several gathers may be under way.
  absl::Status StartGather(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                           const std::vector<std::vector<int32_t>>* lists);
  // Of the oldest that is under way.
  absl::Status FinishGather();

  // to[t] += Σ_k weight[t, k] · row of (t, k); choices without a row count nothing.
  absl::Status AddTo(const Stream& stream, const TensorView& weight,  // [T, K] AccDType; rank 0 = all are 1
                     const TensorView& to) const;                     // [T, H] AccDType
  const TensorView& numbers() const { return numbers_; }              // [T * K, 1] AccDType
  // Gives up what is under way after an error (which ends the group).
  void Drop() { under_way_.clear(); }

 private:
  struct Gathering {
    RowGather gather;
    const std::vector<std::vector<int32_t>>* lists;
  };
  std::vector<TensorView> Matrices() const;

  TensorView rows_, numbers_;
  std::vector<int32_t> row_of_;  // [T * K] a choice's row is at its own index; -1 = none
  std::deque<Gathering> under_way_;
  RowScratch rows_memory_, numbers_memory_, sums_memory_;
};

}  // namespace switchyard::moe
