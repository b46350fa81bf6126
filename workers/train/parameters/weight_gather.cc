#include "workers/train/parameters/weight_gather.h"

#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/part_collectives.h"
#include "workers/tensor/copy.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

constexpr int64_t kGroupBytes = int64_t{16} << 20;
constexpr int64_t kAlignment = 64;

DType WorkingDType(const ParameterBlock& block) {
  return block.weight != nullptr ? block.weight->dtype() : block.tensor->dtype();
}

// Bytes in the group's memory.
int64_t RoomOf(const ParameterBlock& block) {
  const int64_t bytes = block.size() * DTypeBytes(WorkingDType(block));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TensorView Flat(const TensorView& rows) { return rows.Reshape({rows.NumElements()}); }

}  // namespace

absl::Status WeightGather::Add(ParameterBlock* block) {
  SY_CHECK(call_.comm != nullptr && block->is_shared());
  const int64_t bytes = RoomOf(*block);
  if (!next_.blocks.empty() && next_bytes_ + bytes > kGroupBytes) RETURN_IF_ERROR(Launch());
  next_.blocks.push_back(block);
  next_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status WeightGather::Finish() {
  if (!next_.blocks.empty()) RETURN_IF_ERROR(Launch());
  return Receive();
}

absl::Status WeightGather::Launch() {
  Group group = std::exchange(next_, {});
  next_bytes_ = 0;
  int64_t bytes = 0;
  for (const ParameterBlock* block : group.blocks) bytes += block->weight == nullptr ? 0 : RoomOf(*block);
  if (bytes > 0) {
    ASSIGN_OR_RETURN(group.memory, Tensor::Allocate(DType::kI64, {bytes / DTypeBytes(DType::kI64)}, stream_.device()));
  }
  char* at = static_cast<char*>(group.memory.view().raw());
  for (const ParameterBlock* block : group.blocks) {
    if (block->weight == nullptr) {
      group.rows.push_back(block->tensor->view());
      continue;
    }
    group.rows.emplace_back(at, WorkingDType(*block), block->StateShape(), stream_.device());
    at += RoomOf(*block);
  }
  RETURN_IF_ERROR(Round(group));
  comm::PartViews parts(static_cast<size_t>(call_.comm->world()));
  for (size_t b = 0; b < group.blocks.size(); ++b) {
    const std::vector<int64_t>& borders = group.blocks[b]->shared.borders;
    SY_CHECK_EQ(borders.size(), parts.size() + 1);
    for (size_t r = 0; r < parts.size(); ++r) {
      parts[r].push_back(Flat(group.rows[b]).Rows(borders[r], borders[r + 1] - borders[r]));
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

absl::Status WeightGather::Round(const Group& group) const {
  for (size_t b = 0; b < group.blocks.size(); ++b) {
    const ElementRange own = group.blocks[b]->own();
    if (own.count == 0) continue;
    const TensorView to = Flat(group.rows[b]).Rows(own.begin, own.count);
    RETURN_IF_ERROR(RoundRows(stream_, group.blocks[b]->StateAt(&ParameterBlock::master, own).Reshape({1, own.count}),
                              to.Reshape({1, own.count})));
  }
  return absl::OkStatus();
}

absl::Status WeightGather::Receive() {
  if (!under_way_.has_value()) return absl::OkStatus();
  const Group group = *std::exchange(under_way_, std::nullopt);
  RETURN_IF_ERROR(group.work->Wait());
  for (size_t b = 0; b < group.blocks.size(); ++b) {
    if (group.blocks[b]->weight != nullptr) RETURN_IF_ERROR(publish_(group.blocks[b], group.rows[b]));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
