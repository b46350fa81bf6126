// Outputs that a rank adds up before they travel (--combine=added): one row comes back for each row that was sent to a
// rank, not one for each of its experts there.
//
//   a rank's partial sum of a row: Σ over its experts, in top-k order, of weight · output, rounded once to the model's
//   dtype
//   a row's sum: Σ of its partial sums in the order of their ranks, this rank's own like the others'
//
// So a row's bits depend on which experts lie together, but neither on the rank that has the row nor on other rows.
// One object for one exchange at a time, on hosts; keeps its buffers.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/moe/dispatch/host_routes.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class AddedOutputs {
 public:
  // This rank's rows have these weights [T, K], AccDType, which stay until PackWeights was called.
  void Begin(const HostRoutes& routes, int rank, const TensorView& topk_weight);
  // Copies the weights of the pairs that go to each rank: to[r] has room for them, or is null.
  void PackWeights(absl::Span<char* const> to) const;
  // Those that came with a rank's pairs.
  void TakeWeights(int source, absl::Span<const char> weights);

  // Where partial sums come in this rank's batch, behind its outputs, which are so many: sets back_rows and slot_row
  // [T * partials()] of the routes.
  void PlacePartials(int64_t num_outputs, HostRoutes* routes);
  // Ranks that may have experts of one row.
  int64_t partials() const { return partials_; }

  // Rows of the answer to a rank.
  int64_t NumRows(int source) const;
  // Fills in the answer: [NumRows(source), H] model dtype.  y: outputs by their places in the batch.  Internal: a
  // message has more pairs of a row than the row has choices.
  absl::Status Add(const Stream& stream, int source, const TensorView& y, const TensorView& answer);

 private:
  const HostRoutes* routes_ = nullptr;
  int rank_ = 0;
  int64_t partials_ = 1, number_bytes_ = 4;
  TensorView topk_weight_;
  std::vector<std::vector<char>> weights_;  // [R] of incoming pairs
  std::vector<int32_t> own_partial_;        // [T] row of this rank's answer to itself; -1: none of its experts
  int64_t own_partials_ = 0;
  std::vector<int32_t> slot_row_, filled_;  // of an answer
  RowScratch weight_memory_;
};

}  // namespace switchyard::moe
