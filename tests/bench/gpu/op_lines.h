// Shared by the benchmarks of single ops: numbers on the device, exact comparison, the line of JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tests/bench/gpu/bench.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

absl::StatusOr<Tensor> IntsOnDevice(const Bench& bench, std::vector<int32_t> numbers, Shape shape);

// Internal "WHAT: GOT at AT, not WANT".
absl::Status WrongInt(const std::string& what, int64_t at, int64_t got, int64_t want);
// Internal unless the first numbers of `on_device`, int32, are `want`.
absl::Status CheckInts(const Bench& bench, const std::string& what, const TensorView& on_device,
                       const std::vector<int32_t>& want);
// The values of an int32 tensor on the CPU.
std::vector<int32_t> IntsOf(const TensorView& on_host);
// Internal unless all bytes are the same.  want: on the CPU.
absl::Status CheckBytes(const Bench& bench, const std::string& what, const TensorView& on_device,
                        const TensorView& want);

// bytes: the least that must move.
nlohmann::json OpLine(const std::string& op, std::string shape, double bytes);

}  // namespace switchyard
