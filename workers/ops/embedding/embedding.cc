#include "workers/ops/embedding/embedding.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

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

}  // namespace

absl::Status Embed(const Stream& stream, const TensorView& table, const IntView& tokens, const TensorView& residual) {
  ASSIGN_OR_RETURN(const EmbedArgs args, MakeArgs({"embedding", stream.device()}, table, tokens, residual));
  if (stream.device().is_cpu()) return RunOnCpu(stream, tokens.size(), args.width * 4, CpuKernels().embed, args);
  return RunOnCuda("embedding", stream, &CudaKernelTable::embed, args, tokens.size());
}

absl::Status AddEmbedding(const Stream& stream, const TensorView& table, const IntView& rows,
                          const TensorView& residual) {
  const OpSite at = {"add_embedding", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  ASSIGN_OR_RETURN(EmbedArgs args, MakeArgs(at, table, rows, residual));
  args.accumulate = true;
  return RunOnCpu(stream, rows.size(), args.width * 4, CpuKernels().embed, args);
}

}  // namespace switchyard::ops
