#include "workers/ops/core/op_checks.h"

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops {

absl::Status ExpectKernels(const OpSite& at) {
  if (at.device.is_cpu() || CudaKernels() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(at.op, ": no kernel for device ", at.device.ToString()));
}

absl::Status ExpectHost(const OpSite& at) {
  if (at.device.is_cpu()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(at.op, ": runs on the CPU alone, not on ", at.device.ToString()));
}

absl::Status ExpectView(const OpSite& at, absl::string_view name, const TensorView& view, DType dtype,
                        const Shape& shape) {
  if (view.dtype() == dtype && view.shape() == shape && view.device() == at.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", name, " must be ", DTypeName(dtype), " ",
                                                 shape.ToString(), " ", at.device.ToString(), ", is ",
                                                 view.ToString()));
}

absl::Status ExpectFloatMatrix(const OpSite& at, absl::string_view name, const TensorView& view) {
  if (view.rank() == 2 && IsFloating(view.dtype()) && view.device() == at.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", name, " must be a matrix of bf16, fp16, fp32 or fp64 on ",
                                                 at.device.ToString(), ", is ", view.ToString()));
}

absl::Status ExpectInts(const OpSite& at, absl::string_view name, const IntView& ints, int64_t count, int64_t low,
                        int64_t high) {
  if (ints.size() != count || (count > 0 && !(ints.device() == at.device))) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", name, " must be ", count, " numbers on ",
                                                   at.device.ToString(), ", is ", ints.size(), " on ",
                                                   ints.device().ToString()));
  }
  if (!at.device.is_cpu()) return absl::OkStatus();
  for (int64_t i = 0; i < count; ++i) {
    if (ints.data()[i] >= low && ints.data()[i] < high) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(at.op, ": ", name, "[", i, "] = ", ints.data()[i], " is outside [", low, ", ", high, ")"));
  }
  return absl::OkStatus();
}

absl::Status ExpectOffsets(const OpSite& at, const int32_t* offsets, int64_t count, absl::string_view name,
                           int64_t rows) {
  if (offsets[0] != 0 || offsets[count] != rows) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": offsets must be from 0 to ", name, "'s ", rows,
                                                   " rows, are from ", offsets[0], " to ", offsets[count]));
  }
  for (int64_t e = 0; e < count; ++e) {
    if (offsets[e] <= offsets[e + 1]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(at.op, ": offsets fall at ", e, ": ", offsets[e], " to ", offsets[e + 1]));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::ops
