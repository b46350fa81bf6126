// The embedding's gradient as rows of the tokens that a step has (a sparse gradient), which ranks gather, where a sum
// of the whole would send [V, H]: it is complete last, and nothing of backward is left to hide it.
//
//   Begin, with the step's rows ─► SlotsOf each micro-batch, whose gradients backward adds to own()
//     ─► the ranks gather tokens() and rows() ─► AddRows adds them to the gradient, rank by rank
// A tied embedding shares lm_head's gradient, which is summed as soon as the head is done; rows are added behind that.
// Each element is added in rank order, so all ranks have the same bits.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/comm/core/part_collectives.h"
#include "workers/tensor/tensor.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

// Whether gathering sends no more than a sum, and takes at most three times the gradient's memory: where the tokens of
// a step on all ranks are no more than the vocabulary has.  (Ranks send and get 2 (R - 1) / R of V rows for a sum, half
// of that where the gradient is sharded, and (R - 1) / R of the tokens' for a gather.)
inline bool GathersEmbedding(int64_t step_tokens, int64_t vocab_size) {
  return step_tokens > 0 && step_tokens <= vocab_size;
}

// Rows that a rank has in memory while they are gathered, if all tokens of the step differ: everybody's, this rank's
// again in a message to each other rank, and the others' in messages from them.
inline int64_t GatheredRows(int64_t step_tokens, int world) {
  return step_tokens + 2 * (step_tokens * (world - 1) / world);
}

class SparseEmbedding {
 public:
  // gradient: [V, H], borrowed; other sums are added to it before.
  SparseEmbedding(const TensorView& gradient, int rank, int world);

  // Begins a step: own rows are 0.  Returns their number, one for each token of this rank's rows.
  // REQUIRES: tokens are in [0, V).
  int64_t Begin(absl::Span<const TrainRows> micro_batches);
  // The numbers of all ranks' rows, before anything is added to own().  ResourceExhausted.
  absl::Status SetCounts(absl::Span<const int64_t> counts);  // [R]

  // The row of each token, until the next call.  REQUIRES: they are of this step.
  absl::Span<const int32_t> SlotsOf(absl::Span<const int32_t> tokens);
  TensorView own() const { return rows_[static_cast<size_t>(rank_)][0]; }  // [count, H]; added to

  // What ranks gather: the tokens of all rows, rising within a rank's, and the rows.
  const comm::PartViews& tokens() const { return tokens_; }  // [R][1] of [count] int32
  const comm::PartViews& rows() const { return rows_; }      // [R][1] of [count, H]
  // Internal: a rank's tokens are none.
  absl::Status AddRows() const;

 private:
  const TensorView gradient_;
  const int rank_, world_;
  std::vector<int32_t> slot_of_;  // [V] of this rank's tokens, else stale
  std::vector<int32_t> own_tokens_, slots_;
  ScratchTensor all_tokens_, all_rows_;
  comm::PartViews tokens_, rows_;
};

}  // namespace switchyard::train
