#include "workers/ops/optimizer/cross_entropy.h"

#include <limits>

#include "absl/status/status.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"

namespace switchyard::ops {
namespace {

absl::Status Check(const OpSite& at, const TensorView& logits, const IntView& targets, const TensorView& dlogits) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "logits", logits));
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, AccDType(logits.dtype()), {targets.size(), logits.dim(1)}));
  RETURN_IF_ERROR(
      ExpectInts(at, "targets", targets, targets.size(), std::numeric_limits<int32_t>::min(), logits.dim(1)));
  if (dlogits.raw() == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dlogits", dlogits));
  RETURN_IF_ERROR(ExpectView(at, "dlogits", dlogits, dlogits.dtype(), logits.shape()));
  return ExpectView(at, "logits", logits, AccDType(dlogits.dtype()), logits.shape());
}

}  // namespace

absl::StatusOr<double> CrossEntropy(const Stream& stream, double scale, const TensorView& logits,
                                    const IntView& targets, const TensorView& dlogits, double before) {
  RETURN_IF_ERROR(Check({"cross_entropy", stream.device()}, logits, targets, dlogits));
  const int64_t rows = logits.dim(0);
  if (logits.dim(1) == 0) return before;
  double* const losses = static_cast<double*>(ThreadScratch(ScratchUse::kOp, rows * int64_t{sizeof(double)}));
  const CrossEntropyArgs args = {.dtype = DTypeCode(dlogits.raw() == nullptr ? logits.dtype() : dlogits.dtype()),
                                 .logits = RowsOf(logits),
                                 .targets = targets.data(),
                                 .dlogits = RowsOf(dlogits),
                                 .losses = losses,
                                 .vocab = logits.dim(1),
                                 .scale = scale};
  const int64_t row_bytes = 2 * args.vocab * DTypeBytes(logits.dtype());
  RETURN_IF_ERROR(RunOnCpu(stream, rows, row_bytes, CpuKernels().cross_entropy, args));
  double loss = before;
  for (int64_t row = 0; row < rows; ++row) loss += losses[row];
  return loss;
}

}  // namespace switchyard::ops
