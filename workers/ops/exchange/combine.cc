#include "workers/ops/exchange/combine.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

// K: of the weights, or without them of the result's rows.
int64_t TopKOf(const CombineInputs& in, const TensorView& result) {
  if (in.weight.rank() != 0) return in.weight.dim(1);
  return result.dim(0) == 0 ? 0 : in.slot_row.size() / result.dim(0);
}

// y's dtype is the model's; a token without experts, all dropped, still needs one, so y is a matrix even without rows.
// result: [T, H] of the accumulators' dtype, or the model's.
absl::Status Check(const OpSite& at, const CombineInputs& in, const char* name, const TensorView& result,
                   bool rounded) {
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", in.y));
  const bool weighted = in.weight.rank() != 0;
  RETURN_IF_ERROR(ExpectFloatMatrix(at, weighted ? "weight" : name, weighted ? in.weight : result));
  const DType acc = AccDType(in.y.dtype());
  const int64_t num_tokens = (weighted ? in.weight : result).dim(0), width = in.y.dim(1), top_k = TopKOf(in, result);
  if (weighted) RETURN_IF_ERROR(ExpectView(at, "weight", in.weight, acc, {num_tokens, top_k}));
  RETURN_IF_ERROR(ExpectView(at, name, result, rounded ? in.y.dtype() : acc, {num_tokens, width}));
  RETURN_IF_ERROR(ExpectInts(at, "slot_row", in.slot_row, num_tokens * top_k, -1, in.y.dim(0)));
  if (in.shared.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "shared", in.shared, in.y.dtype(), {num_tokens, width}));
  }
  if (in.shared_gate.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "shared_gate", in.shared_gate, acc, {num_tokens, 1}));
  }
  return absl::OkStatus();
}

// One of the results is empty.
CombineArgs ArgsOf(const CombineInputs& in, int64_t top_k, const TensorView& residual, const TensorView& out) {
  const bool gated = in.shared.rank() != 0 && in.shared_gate.rank() != 0;
  return {.dtype = DTypeCode(in.y.dtype()),
          .y = in.y.raw(),
          .slot_row = in.slot_row.data(),
          .weight = in.weight.raw(),
          .shared = in.shared.rank() != 0 ? in.shared.raw() : nullptr,
          .shared_gate = gated ? in.shared_gate.raw() : nullptr,
          .residual = residual.raw(),
          .out = out.raw(),
          .y_stride = in.y.row_stride(),
          .weight_stride = in.weight.row_stride(),
          .shared_stride = in.shared.row_stride(),
          .gate_stride = in.shared_gate.row_stride(),
          .residual_stride = residual.row_stride(),
          .out_stride = out.row_stride(),
          .top_k = top_k,
          .width = in.y.dim(1)};
}

int64_t RowBytes(const CombineArgs& args, DType dtype) { return args.width * DTypeBytes(dtype) * (args.top_k + 1); }

}  // namespace

absl::Status Combine(const Stream& stream, const CombineInputs& in, const TensorView& residual) {
  const OpSite at = {"combine", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(Check(at, in, "residual", residual, /*rounded=*/false));
  const CombineArgs args = ArgsOf(in, TopKOf(in, residual), residual, {});
  if (!stream.device().is_cpu()) return RunOnCuda("combine", stream, &CudaKernelTable::combine, args, residual.dim(0));
  return RunOnCpu(stream, residual.dim(0), RowBytes(args, in.y.dtype()), CpuKernels().combine, args);
}

absl::Status AddOutputs(const Stream& stream, const CombineInputs& in, const TensorView& out) {
  const OpSite at = {"add_outputs", stream.device()};
  if (!stream.device().is_cpu() || in.shared.rank() != 0) {
    return absl::UnimplementedError("add_outputs: on the CPU alone, without a shared expert");
  }
  RETURN_IF_ERROR(Check(at, in, "out", out, /*rounded=*/true));
  const CombineArgs args = ArgsOf(in, TopKOf(in, out), {}, out);
  return RunOnCpu(stream, out.dim(0), RowBytes(args, in.y.dtype()), CpuKernels().combine, args);
}

}  // namespace switchyard::ops
