#include "workers/ops/embedding.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/cuda_call.h"
#include "workers/ops/kernels.h"
#include "workers/ops/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status Embed(const Stream& stream, const TensorView& table, const IntView& tokens, const TensorView& residual) {
  const OpSite at = {"embedding", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "table", table));
  const int64_t num_tokens = tokens.size();
  RETURN_IF_ERROR(ExpectView(at, "residual", residual, AccDType(table.dtype()), {num_tokens, table.dim(1)}));
  RETURN_IF_ERROR(ExpectInts(at, "tokens", tokens, num_tokens, 0, table.dim(0)));
  const EmbedArgs args = {.dtype = DTypeCode(table.dtype()),
                          .table = table.raw(),
                          .tokens = tokens.data(),
                          .residual = residual.raw(),
                          .table_stride = table.row_stride(),
                          .residual_stride = residual.row_stride(),
                          .width = table.dim(1)};
  if (!stream.device().is_cpu()) {
    return RunOnCuda("embedding", stream, [&](const CudaCall& call, const CudaKernelTable& kernels) {
      return kernels.embed(call, args, num_tokens);
    });
  }
  stream.pool().ParallelFor(num_tokens, RowGrain(table.dim(1) * 4),
                            [&](int64_t begin, int64_t end) { CpuKernels().embed(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard
