#include "workers/ops/activation/expert_bias_backward.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/norm/row_block_sums.h"

namespace switchyard::ops {
namespace {

absl::Status Check(const OpSite& at, const ExpertBiasBackwardDesc& desc, const TensorView& d, const TensorView& weight,
                   const TensorView& dweight) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "d", d));
  const DType acc = AccDType(d.dtype());
  const int64_t rows = weight.rank() == 2 ? weight.dim(0) : 0, experts = desc.offsets.size() - 1;
  RETURN_IF_ERROR(ExpectView(at, "weight", weight, acc, {rows, 1}));
  RETURN_IF_ERROR(ExpectView(at, "dweight", dweight, acc, {rows, 1}));
  RETURN_IF_ERROR(ExpectInts(at, "rows", desc.rows, desc.rows.empty() && d.dim(0) == rows ? 0 : rows, 0, d.dim(0)));
  if (experts < 0 || static_cast<int64_t>(desc.biases.size()) != experts ||
      static_cast<int64_t>(desc.gradients.size()) != experts) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", desc.offsets.size(), " offsets, ", desc.biases.size(),
                                                   " biases and ", desc.gradients.size(), " gradients for ", rows,
                                                   " rows"));
  }
  RETURN_IF_ERROR(ExpectOffsets(at, desc.offsets.data(), experts, "weight", rows));
  for (int64_t e = 0; e < experts; ++e) {
    RETURN_IF_ERROR(ExpectView(at, "bias", desc.biases[e], d.dtype(), {d.dim(1)}));
    if (desc.gradients[e].raw() == nullptr) continue;
    RETURN_IF_ERROR(ExpectView(at, "gradient", desc.gradients[e], acc, {d.dim(1)}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertBiasBackward(const Stream& stream, const ExpertBiasBackwardDesc& desc, const TensorView& d,
                                const TensorView& weight, const TensorView& dweight) {
  RETURN_IF_ERROR(Check({"expert_bias_backward", stream.device()}, desc, d, weight, dweight));
  for (size_t e = 0; e < desc.biases.size(); ++e) {
    const int32_t first = desc.offsets.data()[e];
    const ExpertBiasBackwardArgs args = {.dtype = DTypeCode(d.dtype()),
                                         .d = RowsOf(d),
                                         .rows = desc.rows.empty() ? nullptr : desc.rows.data(),
                                         .bias = desc.biases[e].raw(),
                                         .weight = RowsOf(weight),
                                         .dweight = RowsOf(dweight),
                                         .width = d.dim(1)};
    AddRowBlocks(stream, desc.offsets.data()[e + 1] - first, AccDType(d.dtype()), args.width, desc.gradients[e].raw(),
                 [&](int64_t begin, int64_t end, void* sums) {
                   CpuKernels().expert_bias_backward(args, first + begin, first + end, sums);
                 });
  }
  return absl::OkStatus();
}

}  // namespace switchyard::ops
