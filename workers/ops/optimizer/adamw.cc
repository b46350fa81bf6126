#include "workers/ops/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

absl::Status CheckRange(const OpSite& at, absl::string_view name, const TensorView& view, const TensorView& like) {
  RETURN_IF_ERROR(ExpectView(at, name, view, like.dtype(), like.shape()));
  if (view.contiguous() && (view.dtype() == DType::kF32 || view.dtype() == DType::kF64)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(at.op, ": ", name, " must be contiguous fp32 or fp64, is ", view.ToString(),
                   view.contiguous() ? "" : absl::StrCat(" with rows ", view.row_stride(), " apart")));
}

absl::Status CheckDesc(const AdamWDesc& desc) {
  const auto fits = [](double beta) { return beta >= 0 && beta < 1; };
  if (desc.step >= 1 && fits(desc.beta1) && fits(desc.beta2)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("adamw: step must be at least 1 and betas in [0, 1), are ", desc.step,
                                                 ", ", desc.beta1, " and ", desc.beta2));
}

}  // namespace

absl::Status AdamWStep(const Stream& stream, const AdamWDesc& desc, const AdamWRangeViews& range) {
  const OpSite at = {"adamw", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(CheckDesc(desc));
  RETURN_IF_ERROR(CheckRange(at, "parameter", range.parameter, range.parameter));
  RETURN_IF_ERROR(CheckRange(at, "m", range.m, range.parameter));
  RETURN_IF_ERROR(CheckRange(at, "v", range.v, range.parameter));
  RETURN_IF_ERROR(CheckRange(at, "gradient", range.gradient, range.parameter));
  const double step = static_cast<double>(desc.step);
  const AdamWArgs args = {.dtype = DTypeCode(range.parameter.dtype()),
                          .parameter = range.parameter.raw(),
                          .m = range.m.raw(),
                          .v = range.v.raw(),
                          .gradient = range.gradient.raw(),
                          .gradient_scale = desc.gradient_scale,
                          .decay = 1 - desc.lr * desc.weight_decay,
                          .beta1 = desc.beta1,
                          .beta2 = desc.beta2,
                          .eps = desc.eps,
                          .step_size = desc.lr / (1 - std::pow(desc.beta1, step)),
                          .root_correction = std::sqrt(1 - std::pow(desc.beta2, step))};
  stream.pool().ParallelFor(range.parameter.NumElements(), 16 << 10,
                            [&](int64_t begin, int64_t end) { CpuKernels().adamw(args, begin, end); });
  return absl::OkStatus();
}

absl::Status SumsOfSquares(const Stream& stream, const TensorView& x, absl::Span<double> sums) {
  const OpSite at = {"sum_of_squares", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(CheckRange(at, "x", x, x));
  const int64_t count = x.NumElements(), blocks = (count + kNormBlock - 1) / kNormBlock;
  const int64_t bytes = DTypeBytes(x.dtype());
  SY_CHECK_EQ(static_cast<int64_t>(sums.size()), blocks);
  stream.pool().ParallelFor(blocks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNormBlock;
      sums[block] = CpuKernels().sum_of_squares(DTypeCode(x.dtype()), static_cast<const char*>(x.raw()) + first * bytes,
                                                std::min(kNormBlock, count - first));
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<double> SumOfSquares(const Stream& stream, const TensorView& x) {
  const int64_t blocks = (x.NumElements() + kNormBlock - 1) / kNormBlock;
  double* const sums = static_cast<double*>(ThreadScratch(ScratchUse::kOp, blocks * int64_t{sizeof(double)}));
  RETURN_IF_ERROR(SumsOfSquares(stream, x, absl::MakeSpan(sums, static_cast<size_t>(blocks))));
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[block];
  return total;
}

}  // namespace switchyard::ops
