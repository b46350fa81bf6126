#include "workers/ops/embedding/fading_sum.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

constexpr double kNothing = 1e-6;  // smaller weights are left out

template <class Elem>
void AddOnCpu(const FadingSumArgs& args) {
  std::vector<Elem> mean(static_cast<size_t>(args.width));
  for (int64_t t = 0; t < args.rows; ++t) {
    const Elem* const own = static_cast<const Elem*>(args.both) + t * args.both_stride;
    Elem* const to = static_cast<Elem*>(args.sum) + t * args.sum_stride;
    const Elem kept = t == 0 || args.begins[t] != 0 ? Elem{0} : static_cast<Elem>(args.kept);
    for (int64_t c = 0; c < args.width; ++c) {
      const Elem value = own[args.width + c];
      Elem& now = mean[static_cast<size_t>(c)];
      now = value + kept * (now - value);
      to[c] = own[c] + now;
      if (c >= args.width - args.rectified && to[c] < 0) to[c] = 0;
    }
  }
}

}  // namespace

absl::Status AddFadingMean(const Stream& stream, const FadingSumDesc& desc, const TensorView& both,
                           const IntView& begins, const TensorView& sum) {
  const OpSite at = {"fading_sum", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "sum", sum));
  RETURN_IF_ERROR(ExpectView(at, "sum", sum, AccDType(sum.dtype()), sum.shape()));
  RETURN_IF_ERROR(ExpectView(at, "both", both, sum.dtype(), {sum.dim(0), 2 * sum.dim(1)}));
  RETURN_IF_ERROR(ExpectInts(at, "begins", begins, sum.dim(0), 0, 2));
  if (!(desc.kept >= 0 && desc.kept < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("fading_sum: kept must be within [0, 1), is ", desc.kept));
  }
  if (desc.rectified < 0 || desc.rectified > sum.dim(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fading_sum: rectified must be within [0, ", sum.dim(1), "], is ", desc.rectified));
  }
  const FadingSumArgs args = {
      .dtype = DTypeCode(sum.dtype()),
      .both = both.raw(),
      .begins = begins.data(),
      .sum = sum.raw(),
      .rows = sum.dim(0),
      .width = sum.dim(1),
      .both_stride = both.row_stride(),
      .sum_stride = sum.row_stride(),
      .reach = desc.kept > 0 ? static_cast<int64_t>(std::log(kNothing) / std::log(desc.kept)) + 1 : 0,
      .rectified = desc.rectified,
      .kept = desc.kept};
  if (!stream.device().is_cpu()) return RunOnCuda("fading_sum", stream, &CudaKernelTable::fading_sum, args);
  sum.dtype() == DType::kF64 ? AddOnCpu<double>(args) : AddOnCpu<float>(args);
  return absl::OkStatus();
}

}  // namespace switchyard::ops
