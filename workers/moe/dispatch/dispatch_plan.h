// The sizes and places of one exchange's messages, from bounds or from counts.  Pure.
//
// Dispatch sends each peer a block of rows and pairs (workers/ops/core/row_blocks.h); combine returns one output for
// each pair, in their order.  A rank plans to receive what its peers plan to send.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/ops/core/row_blocks.h"

namespace switchyard::moe {

// One direction of an all-to-all, in bytes.
struct MessageParts {
  std::vector<int64_t> offsets;  // [R]
  std::vector<int64_t> bytes;    // [R] 0 for this rank
  int64_t total_bytes() const;
};

struct DispatchPlan {
  ops::RowBlocks send, recv;                  // of dispatch; recv has this rank's own rows, too
  MessageParts dispatch_send, dispatch_recv;  // parts of the memory of `send` and `recv`
  int64_t num_answers = 0;                    // rows of the memory that combine sends from
  int64_t num_outputs = 0;                    // rows of experts' outputs, at most; others' come behind them
  int64_t num_returned = 0;                   // how many rows come
  MessageParts combine_send, combine_recv;    // parts of the answers, and of outputs with what comes behind
};

// The input of both kinds of plan.
struct DispatchShape {
  const ExpertLayout* layout = nullptr;
  int rank = 0;
  int64_t rows = 0;       // T of this rank
  int64_t top_k = 0;      // K
  int64_t row_bytes = 0;  // of a hidden row
};

// For any choice of T <= max_rows rows on every rank: a peer may get all rows, and a row as many pairs as it has
// choices or the peer has experts.  InvalidArgument: T > max_rows, more than kMaxExchangeRanks ranks.
absl::StatusOr<DispatchPlan> BoundedPlan(const DispatchShape& shape, int64_t max_rows);

// For counts: sent[2 * r] rows and sent[2 * r + 1] pairs go to rank r, this one included; likewise received.
// Internal: a peer's counts are impossible.
absl::StatusOr<DispatchPlan> ExactPlan(const DispatchShape& shape, absl::Span<const int32_t> sent,
                                       absl::Span<const int32_t> received);

}  // namespace switchyard::moe
