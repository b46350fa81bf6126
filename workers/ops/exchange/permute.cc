#include "workers/ops/exchange/permute.h"

#include <algorithm>
#include <cstring>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

absl::Status CheckOrder(const OpSite& at, const TensorView& topk_idx, int64_t num_experts, const ExpertOrder& order) {
  if (topk_idx.dtype() != DType::kI32 || topk_idx.rank() != 2 || !topk_idx.contiguous() || num_experts < 1 ||
      !(topk_idx.device() == at.device)) {
    return absl::InvalidArgumentError(absl::StrCat("permute: topk_idx must be contiguous int32 [T, K] on ",
                                                   at.device.ToString(), " and num_experts positive, are ",
                                                   topk_idx.ToString(), " and ", num_experts));
  }
  const int64_t choices = topk_idx.NumElements();
  RETURN_IF_ERROR(ExpectView(at, "offsets", order.offsets, DType::kI32, {num_experts + 1}));
  RETURN_IF_ERROR(ExpectView(at, "token", order.token, DType::kI32, {choices}));
  return ExpectView(at, "slot_row", order.slot_row, DType::kI32, {choices});
}

absl::Status BuildOnCpu(const TensorView& topk_idx, int64_t num_experts, const ExpertOrder& order) {
  const int64_t choices = topk_idx.NumElements(), top_k = topk_idx.dim(1);
  const int32_t* const idx = topk_idx.data<int32_t>();
  int32_t* const offsets = order.offsets.data<int32_t>();
  std::fill_n(offsets, num_experts + 1, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (idx[i] < -1 || idx[i] >= num_experts) {
      return absl::InvalidArgumentError(absl::StrCat("permute: expert ", idx[i], " of token ", i / top_k, ", k ",
                                                     i % top_k, " is outside [-1, ", num_experts, ")"));
    }
    if (idx[i] >= 0) ++offsets[idx[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] += offsets[e];
  // offsets[e] serves as expert e's cursor and ends up where expert e + 1 begins; shifting it back restores it.
  for (int64_t i = 0; i < choices; ++i) {
    int32_t& row = order.slot_row.data<int32_t>()[i];
    row = -1;
    if (idx[i] < 0) continue;
    row = offsets[idx[i]]++;
    order.token.data<int32_t>()[row] = static_cast<int32_t>(i / top_k);
  }
  for (int64_t e = num_experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return absl::OkStatus();
}

struct GatherViews {
  const TensorView& x;
  const IntView& rows;
  const TensorView& y;
  bool keep_absent;  // rows may be -1
};

absl::Status Gather(const Stream& stream, absl::string_view op, const GatherViews& views) {
  const auto& [x, rows, y, keep_absent] = views;
  const OpSite at = {op, stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  if (x.rank() != 2) return absl::InvalidArgumentError(absl::StrCat(op, ": x must be a matrix, is ", x.ToString()));
  RETURN_IF_ERROR(ExpectView(at, "y", y, x.dtype(), {rows.size(), x.dim(1)}));
  RETURN_IF_ERROR(ExpectInts(at, "rows", rows, rows.size(), keep_absent ? -1 : 0, x.dim(0)));
  const int64_t elem_bytes = DTypeBytes(x.dtype());
  const GatherArgs args = {.x = x.raw(),
                           .rows = rows.data(),
                           .y = y.raw(),
                           .count = rows.size(),
                           .row_bytes = x.dim(1) * elem_bytes,
                           .x_stride_bytes = x.row_stride() * elem_bytes,
                           .y_stride_bytes = y.row_stride() * elem_bytes,
                           .keep_absent = keep_absent};
  if (!at.device.is_cpu()) return RunOnCuda(op, stream, &CudaKernelTable::gather, args);
  stream.pool().ParallelFor(args.count, RowGrain(2 * args.row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (args.rows[i] < 0) continue;
      std::memcpy(static_cast<char*>(args.y) + i * args.y_stride_bytes,
                  static_cast<const char*>(args.x) + args.rows[i] * args.x_stride_bytes,
                  static_cast<size_t>(args.row_bytes));
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status BuildExpertOrder(const Stream& stream, const TensorView& topk_idx, int64_t num_experts,
                              const ExpertOrder& order) {
  const OpSite at = {"permute", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(CheckOrder(at, topk_idx, num_experts, order));
  if (at.device.is_cpu()) return BuildOnCpu(topk_idx, num_experts, order);
  const ExpertOrderArgs args = {.topk_idx = topk_idx.data<int32_t>(),
                                .rows = topk_idx.dim(0),
                                .top_k = topk_idx.dim(1),
                                .experts = num_experts,
                                .offsets = order.offsets.data<int32_t>(),
                                .token = order.token.data<int32_t>(),
                                .slot_row = order.slot_row.data<int32_t>()};
  return RunOnCuda("permute", stream, &CudaKernelTable::expert_order, args);
}

absl::Status CountExperts(const Stream& stream, const TensorView& topk_idx, const TensorView& counts) {
  const OpSite at = {"count_experts", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectView(at, "topk_idx", topk_idx, DType::kI32, topk_idx.shape()));
  RETURN_IF_ERROR(ExpectView(at, "counts", counts, DType::kI32, {counts.NumElements()}));
  const CountExpertsArgs args = {.topk_idx = topk_idx.data<int32_t>(),
                                 .n = topk_idx.NumElements(),
                                 .experts = counts.dim(0),
                                 .counts = counts.data<int32_t>()};
  if (!at.device.is_cpu()) return RunOnCuda("count_experts", stream, &CudaKernelTable::count_experts, args);
  for (int64_t i = 0; i < args.n; ++i) {
    if (args.topk_idx[i] >= args.experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("count_experts: expert ", args.topk_idx[i], " is outside [-1, ", args.experts, ")"));
    }
    if (args.topk_idx[i] >= 0) ++args.counts[args.topk_idx[i]];
  }
  return absl::OkStatus();
}

absl::Status GatherRows(const Stream& stream, const TensorView& x, const IntView& rows, const TensorView& y) {
  return Gather(stream, "gather_rows", {x, rows, y, /*keep_absent=*/false});
}

absl::Status GatherPresent(const Stream& stream, const TensorView& x, const IntView& rows, const TensorView& y) {
  return Gather(stream, "exchange", {x, rows, y, /*keep_absent=*/true});
}

}  // namespace switchyard::ops
