#include "workers/moe/dispatch/dispatch_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::moe {
namespace {

using Sizes = std::vector<ops::RowBlockSize>;  // [R]

// The blocks of the other ranks, as parts of a message.
MessageParts BlockParts(const ops::RowBlocks& blocks) {
  MessageParts parts;
  for (int r = 0; r < blocks.ranks; ++r) {
    const ops::RowBlock& block = blocks.of[r];
    const bool empty = r == blocks.rank || block.max_pairs == 0;
    parts.offsets.push_back(block.head_row * blocks.row_bytes);
    parts.bytes.push_back(empty ? 0 : (block.first_row + block.max_rows - block.head_row) * blocks.row_bytes);
  }
  return parts;
}

// One row of outputs for each pair of the other ranks: row p + shift for pair p.
MessageParts OutputParts(const ops::RowBlocks& blocks, int64_t shift) {
  MessageParts parts;
  for (int r = 0; r < blocks.ranks; ++r) {
    const ops::RowBlock& block = blocks.of[r];
    parts.offsets.push_back(r == blocks.rank ? 0 : (block.pair_begin + shift) * blocks.row_bytes);
    parts.bytes.push_back(r == blocks.rank ? 0 : block.max_pairs * blocks.row_bytes);
  }
  return parts;
}

// own_outputs: how many outputs this rank's own pairs have.
absl::StatusOr<DispatchPlan> PlanOf(const DispatchShape& shape, Sizes sent, Sizes received, int64_t own_outputs) {
  const int ranks = shape.layout->num_ranks(), rank = shape.rank;
  sent[rank] = {};
  received[rank] = {.rows = shape.rows, .pairs = shape.rows * shape.top_k};
  DispatchPlan plan;
  if (!ops::LayOutRowBlocks(rank, ranks, shape.row_bytes, sent.data(), &plan.send) ||
      !ops::LayOutRowBlocks(rank, ranks, shape.row_bytes, received.data(), &plan.recv)) {
    return absl::InvalidArgumentError(absl::StrCat("exchange: ", shape.rows, " rows of ", shape.top_k, " choices on ",
                                                   ranks, " ranks (at most ", ops::kMaxExchangeRanks,
                                                   ") make more rows or pairs than int32 counts"));
  }
  const int64_t own_pairs = plan.recv.of[rank].max_pairs;
  plan.num_answers = plan.recv.num_pairs - own_pairs;
  plan.num_outputs = plan.num_answers + own_outputs;
  plan.num_returned = plan.send.num_pairs;
  plan.dispatch_send = BlockParts(plan.send);
  plan.dispatch_recv = BlockParts(plan.recv);
  plan.combine_send = OutputParts(plan.recv, -own_pairs);
  plan.combine_recv = OutputParts(plan.send, plan.num_outputs);
  return plan;
}

}  // namespace

int64_t MessageParts::total_bytes() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

absl::StatusOr<DispatchPlan> BoundedPlan(const DispatchShape& shape, int64_t max_rows) {
  if (shape.rows > max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: ", shape.rows, " rows where max_rows is ", max_rows, ", the same on all ranks"));
  }
  const auto bounds = [&](int receiver) -> ops::RowBlockSize {
    const auto experts = static_cast<int64_t>(shape.layout->Residents(receiver).size());
    const int64_t pairs = max_rows * std::min(shape.top_k, experts);
    return {.rows = pairs > 0 ? max_rows : 0, .pairs = pairs};
  };
  Sizes sent, received;
  for (int r = 0; r < shape.layout->num_ranks(); ++r) {
    sent.push_back(bounds(r));
    received.push_back(bounds(shape.rank));
  }
  const int64_t own_outputs = shape.layout->Residents(shape.rank).empty() ? 0 : shape.rows * shape.top_k;
  return PlanOf(shape, std::move(sent), std::move(received), own_outputs);
}

absl::StatusOr<DispatchPlan> ExactPlan(const DispatchShape& shape, absl::Span<const int32_t> sent,
                                       absl::Span<const int32_t> received) {
  const auto experts = static_cast<int64_t>(shape.layout->Residents(shape.rank).size());
  Sizes to, from;
  for (int r = 0; r < shape.layout->num_ranks(); ++r) {
    to.push_back({.rows = sent[2 * r], .pairs = sent[2 * r + 1]});
    from.push_back({.rows = received[2 * r], .pairs = received[2 * r + 1]});
    const auto [rows, pairs] = from.back();
    if (rows < 0 || pairs < rows || pairs > rows * shape.top_k || (experts == 0 && pairs > 0)) {
      return absl::InternalError(absl::StrCat("exchange: rank ", r, " announces ", rows, " rows and ", pairs,
                                              " pairs for ", experts, " experts, ", shape.top_k, " choices a row"));
    }
  }
  return PlanOf(shape, std::move(to), std::move(from), sent[2 * shape.rank + 1]);
}

}  // namespace switchyard::moe
