#include "workers/ops/op_checks.h"

namespace switchyard {

absl::Status ExpectView(absl::string_view op, absl::string_view name, const TensorView& view, DType dtype,
                        const Shape& shape) {
  if (view.dtype() == dtype && view.shape() == shape && view.device() == Device::Cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": ", name, " must be ", DTypeName(dtype), " ", shape.ToString(), " cpu, is ", view.ToString()));
}

absl::Status ExpectFloatMatrix(absl::string_view op, absl::string_view name, const TensorView& view) {
  if (view.rank() == 2 && IsFloating(view.dtype()) && view.device() == Device::Cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": ", name, " must be a matrix of bf16, fp16, fp32 or fp64 on cpu, is ", view.ToString()));
}

absl::Status ExpectCpu(absl::string_view op, const Stream& stream) {
  if (stream.device() == Device::Cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": no kernel for device ", stream.device().ToString()));
}

}  // namespace switchyard
