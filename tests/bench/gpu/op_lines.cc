#include "tests/bench/gpu/op_lines.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"

namespace switchyard {

absl::StatusOr<Tensor> IntsOnDevice(const Bench& bench, std::vector<int32_t> numbers, Shape shape) {
  return CopyToDevice(bench.stream(), TensorView(numbers.data(), DType::kI32, shape));
}

absl::Status WrongInt(const std::string& what, int64_t at, int64_t got, int64_t want) {
  return absl::InternalError(absl::StrCat(what, ": ", got, " at ", at, ", not ", want));
}

std::vector<int32_t> IntsOf(const TensorView& on_host) {
  const auto* const numbers = static_cast<const int32_t*>(on_host.raw());
  return {numbers, numbers + on_host.NumElements()};
}

absl::Status CheckInts(const Bench& bench, const std::string& what, const TensorView& on_device,
                       const std::vector<int32_t>& want) {
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench.stream(), on_device));
  const std::vector<int32_t> numbers = IntsOf(got);
  for (size_t i = 0; i < want.size(); ++i) {
    if (numbers[i] != want[i]) return WrongInt(what, static_cast<int64_t>(i), numbers[i], want[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckBytes(const Bench& bench, const std::string& what, const TensorView& on_device,
                        const TensorView& want) {
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench.stream(), on_device));
  const auto *a = static_cast<const uint8_t*>(got.view().raw()), *b = static_cast<const uint8_t*>(want.raw());
  for (int64_t i = 0; i < want.NumElements() * DTypeBytes(want.dtype()); ++i) {
    if (a[i] != b[i]) return WrongInt(absl::StrCat(what, ", byte"), i, a[i], b[i]);
  }
  return absl::OkStatus();
}

nlohmann::json OpLine(const std::string& op, std::string shape, double bytes) {
  return {{"kind", "op"}, {"op", op}, {"shape", std::move(shape)}, {"bytes", bytes}, {"flops", 0}};
}

}  // namespace switchyard
