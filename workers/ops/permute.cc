#include "workers/ops/permute.h"

#include <cstring>

#include "scheduler/base/status_macros.h"
#include "workers/ops/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status BuildExpertOrder(const TensorView& topk_idx, int64_t num_experts, ExpertOrder* order) {
  if (topk_idx.dtype() != DType::kI32 || topk_idx.rank() != 2 || num_experts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("permute: topk_idx must be int32 [T, K] and num_experts positive, are ", topk_idx.ToString(),
                     " and ", num_experts));
  }
  const int64_t num_tokens = topk_idx.dim(0), top_k = topk_idx.dim(1);
  order->offsets.assign(num_experts + 1, 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t e = topk_idx.row<int32_t>(t)[k];
      if (e < -1 || e >= num_experts) {
        return absl::InvalidArgumentError(
            absl::StrCat("permute: expert ", e, " of token ", t, ", k ", k, " is outside [-1, ", num_experts, ")"));
      }
      if (e >= 0) ++order->offsets[e + 1];
    }
  }
  for (int64_t e = 0; e < num_experts; ++e) order->offsets[e + 1] += order->offsets[e];

  // offsets[e] serves as expert e's cursor and ends up where expert e + 1 begins; shifting it back restores it.
  order->token.resize(order->offsets[num_experts]);
  order->slot_row.resize(num_tokens * top_k);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t e = topk_idx.row<int32_t>(t)[k];
      int32_t& row = order->slot_row[t * top_k + k];
      row = -1;
      if (e < 0) continue;
      row = static_cast<int32_t>(order->offsets[e]++);
      order->token[row] = static_cast<int32_t>(t);
    }
  }
  for (int64_t e = num_experts; e > 0; --e) order->offsets[e] = order->offsets[e - 1];
  order->offsets[0] = 0;
  return absl::OkStatus();
}

absl::Status GatherRows(const Stream& stream, const TensorView& x, absl::Span<const int32_t> rows,
                        const TensorView& y) {
  RETURN_IF_ERROR(ExpectCpu("gather_rows", stream));
  if (x.rank() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("gather_rows: x must be a matrix, is ", x.ToString()));
  }
  RETURN_IF_ERROR(ExpectView("gather_rows", "y", y, x.dtype(), {static_cast<int64_t>(rows.size()), x.dim(1)}));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= x.dim(0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("gather_rows: rows[", i, "] = ", rows[i], " is outside [0, ", x.dim(0), ")"));
    }
  }
  const int64_t elem_bytes = DTypeBytes(x.dtype()), row_bytes = x.dim(1) * elem_bytes;
  stream.pool().ParallelFor(y.dim(0), RowGrain(2 * row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(y.raw()) + i * y.row_stride() * elem_bytes,
                  static_cast<const char*>(x.raw()) + rows[i] * x.row_stride() * elem_bytes, row_bytes);
    }
  });
  return absl::OkStatus();
}

}  // namespace switchyard
