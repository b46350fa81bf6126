#include "workers/train/parameters/weight_gather.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/part_collectives.h"
#include "workers/tensor/copy.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

TensorView Part(const TensorView& rows, const ElementRange& range) {
  return rows.Reshape({rows.NumElements()}).Rows(range.begin, range.count);
}

}  // namespace

absl::Status WeightGather::Add(ParameterBlock* block) {
  SY_CHECK(call_.comm != nullptr && block->is_sharded());
  Whole& whole = wholes_.emplace_back();
  whole.block = block;
  if (block->weight != nullptr) {
    ASSIGN_OR_RETURN(whole.memory, Tensor::Allocate(block->weight->dtype(), block->StateShape(), stream_.device()));
    whole.rows = whole.memory.view();
  } else {
    whole.rows = block->tensor->view();
  }
  const int64_t element = DTypeBytes(whole.rows.dtype());
  for (int64_t begin = 0; begin < block->size();) {
    if (!next_.pieces.empty() && next_bytes_ + element > call_bytes_) RETURN_IF_ERROR(Launch());
    const int64_t room = std::max<int64_t>(1, (call_bytes_ - next_bytes_) / element);
    const int64_t count = std::min(room, block->size() - begin);
    next_.pieces.push_back({&whole, {begin, count}});
    next_bytes_ += count * element;
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status WeightGather::Finish() {
  if (!next_.pieces.empty()) RETURN_IF_ERROR(Launch());
  return Receive();
}

absl::Status WeightGather::Launch() {
  Group group = std::exchange(next_, {});
  next_bytes_ = 0;
  comm::PartViews parts(static_cast<size_t>(call_.comm->world()));
  for (const Piece& piece : group.pieces) {
    const ParameterBlock& block = *piece.whole->block;
    SY_CHECK_EQ(block.borders.size(), parts.size() + 1);
    for (size_t r = 0; r < parts.size(); ++r) {
      const ElementRange run = RunOfPiece(block.borders, static_cast<int>(r), piece.elements);
      parts[r].push_back(Part(piece.whole->rows, run));
      if (static_cast<int>(r) != call_.comm->rank() || run.count == 0) continue;
      RETURN_IF_ERROR(RoundRows(stream_, block.StateAt(&ParameterBlock::master, run).Reshape({1, run.count}),
                                parts[r].back().Reshape({1, run.count})));
    }
  }
  ASSIGN_OR_RETURN(
      group.work,
      comm::AllGatherParts(call_.comm,
                           {.comm_class = comm::CommClass::kAllReduce, .deadline = call_.deadline, .tag = ++launched_},
                           parts));
  const absl::Status received = Receive();
  under_way_ = std::move(group);
  return received;
}

absl::Status WeightGather::Receive() {
  if (!under_way_.has_value()) return absl::OkStatus();
  const Group group = *std::exchange(under_way_, std::nullopt);
  RETURN_IF_ERROR(group.work->Wait());
  for (const Piece& piece : group.pieces) {
    SY_CHECK(piece.whole == &wholes_.front());
    ParameterBlock* const block = piece.whole->block;
    if (piece.elements.end() < block->size()) continue;
    if (block->weight != nullptr) RETURN_IF_ERROR(publish_(block, piece.whole->rows));
    wholes_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
