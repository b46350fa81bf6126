#include "workers/ops/exchange/combine.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

// y's dtype is the model's; a token without experts, all dropped, still needs one, so y is a matrix even without rows.
absl::Status Check(const OpSite& at, const CombineInputs& in, const TensorView& residual) {
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", in.y));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "weight", in.weight));
  const DType acc = AccDType(in.y.dtype());
  const int64_t num_tokens = in.weight.dim(0), top_k = in.weight.dim(1), width = in.y.dim(1);
  RETURN_IF_ERROR(ExpectView(at, "weight", in.weight, acc, {num_tokens, top_k}));
  RETURN_IF_ERROR(ExpectView(at, "residual", residual, acc, {num_tokens, width}));
  RETURN_IF_ERROR(ExpectInts(at, "slot_row", in.slot_row, num_tokens * top_k, -1, in.y.dim(0)));
  if (in.shared.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "shared", in.shared, in.y.dtype(), {num_tokens, width}));
  }
  if (in.shared_gate.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "shared_gate", in.shared_gate, acc, {num_tokens, 1}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Combine(const Stream& stream, const CombineInputs& in, const TensorView& residual) {
  const OpSite at = {"combine", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(Check(at, in, residual));
  const bool gated = in.shared.rank() != 0 && in.shared_gate.rank() != 0;
  const CombineArgs args = {.dtype = DTypeCode(in.y.dtype()),
                            .y = in.y.raw(),
                            .slot_row = in.slot_row.data(),
                            .weight = in.weight.raw(),
                            .shared = in.shared.rank() != 0 ? in.shared.raw() : nullptr,
                            .shared_gate = gated ? in.shared_gate.raw() : nullptr,
                            .residual = residual.raw(),
                            .y_stride = in.y.row_stride(),
                            .weight_stride = in.weight.row_stride(),
                            .shared_stride = in.shared.row_stride(),
                            .gate_stride = in.shared_gate.row_stride(),
                            .residual_stride = residual.row_stride(),
                            .top_k = in.weight.dim(1),
                            .width = in.y.dim(1)};
  const int64_t row_bytes = in.y.dim(1) * DTypeBytes(in.y.dtype()) * (args.top_k + 1);
  if (!stream.device().is_cpu()) return RunOnCuda("combine", stream, &CudaKernelTable::combine, args, residual.dim(0));
  return RunOnCpu(stream, residual.dim(0), row_bytes, CpuKernels().combine, args);
}

}  // namespace switchyard::ops
