#include "workers/ops/embedding/embedding.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

namespace {

absl::StatusOr<EmbedArgs> MakeArgs(const OpSite& at, const TensorView& table, const IntView& rows,
                                   const TensorView& residual) {
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "table", table));
  const int64_t num_rows = rows.size();
  RETURN_IF_ERROR(ExpectView(at, "residual", residual, AccDType(table.dtype()), {num_rows, table.dim(1)}));
  RETURN_IF_ERROR(ExpectInts(at, "tokens", rows, num_rows, 0, table.dim(0)));
  return EmbedArgs{.dtype = DTypeCode(table.dtype()),
                   .table = table.raw(),
                   .tokens = rows.data(),
                   .residual = residual.raw(),
                   .table_stride = table.row_stride(),
                   .residual_stride = residual.row_stride(),
                   .width = table.dim(1),
                   .accumulate = false};
}

absl::Status RunOnCpu(const Stream& stream, const EmbedArgs& args, int64_t num_rows) {
  stream.pool().ParallelFor(num_rows, RowGrain(args.width * 4),
                            [&](int64_t begin, int64_t end) { CpuKernels().embed(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace

absl::Status Embed(const Stream& stream, const TensorView& table, const IntView& tokens, const TensorView& residual) {
  ASSIGN_OR_RETURN(const EmbedArgs args, MakeArgs({"embedding", stream.device()}, table, tokens, residual));
  if (stream.device().is_cpu()) return RunOnCpu(stream, args, tokens.size());
  return RunOnCuda("embedding", stream, [&](const CudaCall& call, const CudaKernelTable& kernels) {
    return kernels.embed(call, args, tokens.size());
  });
}

absl::Status AddEmbedding(const Stream& stream, const TensorView& table, const IntView& rows,
                          const TensorView& residual) {
  const OpSite at = {"add_embedding", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  ASSIGN_OR_RETURN(EmbedArgs args, MakeArgs(at, table, rows, residual));
  args.accumulate = true;
  return RunOnCpu(stream, args, rows.size());
}

}  // namespace switchyard::ops
