#include "workers/ops/rope/rope.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

absl::StatusOr<RopeArgs> MakeArgs(const OpSite& at, const RopeTable& table, int64_t head_dim, const IntView& table_rows,
                                  const TensorView& x) {
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "x", x));
  const int64_t num_tokens = table_rows.size();
  if (x.dim(0) != num_tokens || table.cos().dtype() != AccDType(x.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": x is ", x.ToString(), ", table rows are ", num_tokens,
                                                   ", the table is ", DTypeName(table.cos().dtype())));
  }
  if (head_dim < table.rotary_dim() || x.dim(1) % head_dim != 0) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": rows of ", x.dim(1), " elements, head_dim ", head_dim,
                                                   ", rotary_dim ", table.rotary_dim(), " do not fit"));
  }
  RETURN_IF_ERROR(ExpectInts(at, "table rows", table_rows, num_tokens, 0, table.num_rows()));
  return RopeArgs{.dtype = DTypeCode(x.dtype()),
                  .cos = table.cos().raw(),
                  .sin = table.sin().raw(),
                  .table_rows = table_rows.data(),
                  .x = x.raw(),
                  .x_stride = x.row_stride(),
                  .heads = x.dim(1) / head_dim,
                  .head_dim = head_dim,
                  .half = table.rotary_dim() / 2};
}

absl::Status Rotate(const Stream& stream, RowKernel<RopeArgs> kernel, const RopeArgs& args, const TensorView& x) {
  if (args.half == 0) return absl::OkStatus();
  return RunOnCpu(stream, x.dim(0), x.dim(1) * DTypeBytes(x.dtype()), kernel, args);
}

}  // namespace

absl::Status ApplyRope(const Stream& stream, const RopeTable& table, int64_t head_dim, const IntView& table_rows,
                       const TensorView& x) {
  const OpSite at = {"rope", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  ASSIGN_OR_RETURN(const RopeArgs args, MakeArgs(at, table, head_dim, table_rows, x));
  if (!stream.device().is_cpu()) return RunOnCuda("rope", stream, &CudaKernelTable::rope, args, x.dim(0));
  return Rotate(stream, CpuKernels().rope, args, x);
}

absl::Status ApplyRopeBackward(const Stream& stream, const RopeTable& table, int64_t head_dim,
                               const IntView& table_rows, const TensorView& dx) {
  const OpSite at = {"rope_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  ASSIGN_OR_RETURN(const RopeArgs args, MakeArgs(at, table, head_dim, table_rows, dx));
  return Rotate(stream, CpuKernels().rope_backward, args, dx);
}

}  // namespace switchyard::ops
