#include "workers/ops/embedding.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/kernels.h"
#include "workers/ops/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status Embed(const Stream& stream, const TensorView& table, absl::Span<const int32_t> tokens,
                   const TensorView& residual) {
  RETURN_IF_ERROR(ExpectCpu("embedding", stream));
  RETURN_IF_ERROR(ExpectFloatMatrix("embedding", "table", table));
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  RETURN_IF_ERROR(ExpectView("embedding", "residual", residual, AccDType(table.dtype()), {num_tokens, table.dim(1)}));
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (tokens[t] < 0 || tokens[t] >= table.dim(0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding: token ", tokens[t], " of row ", t, " is outside [0, ", table.dim(0), ")"));
    }
  }
  const EmbedArgs args = {.dtype = DTypeCode(table.dtype()),
                          .table = table.raw(),
                          .tokens = tokens.data(),
                          .residual = residual.raw(),
                          .table_stride = table.row_stride(),
                          .residual_stride = residual.row_stride(),
                          .width = table.dim(1)};
  stream.pool().ParallelFor(num_tokens, RowGrain(table.dim(1) * 4),
                            [&](int64_t begin, int64_t end) { CpuKernels().embed(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard
