// Experts' weights for grouped products: one for each slot, all of one shape.
//
// A WeightGroup borrows; a WeightTable also owns the list of pointers that devices need in their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

class WeightGroup {
 public:
  WeightGroup() = default;
  // Implicit: on the CPU a span or vector of pointers is a group.
  WeightGroup(absl::Span<const Weight* const> weights) : weights_(weights) {}  // NOLINT
  template <size_t kSize>
  WeightGroup(const Weight* const (&weights)[kSize]) : weights_(weights, kSize) {}                    // NOLINT
  WeightGroup(const std::vector<const Weight*>& weights) : weights_(absl::MakeConstSpan(weights)) {}  // NOLINT
  WeightGroup(absl::Span<const Weight* const> weights, const void* const* on_device)
      : weights_(weights), on_device_(on_device) {}

  int64_t size() const { return static_cast<int64_t>(weights_.size()); }
  const Weight* operator[](int64_t i) const { return weights_[static_cast<size_t>(i)]; }
  absl::Span<const Weight* const> weights() const { return weights_; }
  // [size] pointers in the device's memory; null on the CPU.
  const void* const* on_device() const { return on_device_; }

 private:
  absl::Span<const Weight* const> weights_;
  const void* const* on_device_ = nullptr;
};

// Owns the list and, on a device, its copy there.  The weights are borrowed.
class WeightTable {
 public:
  WeightTable() = default;
  // ResourceExhausted or the device's errors.
  static absl::StatusOr<WeightTable> Make(const Stream& stream, std::vector<const Weight*> weights);

  WeightGroup group() const { return WeightGroup(weights_, static_cast<const void* const*>(on_device_.view().raw())); }

 private:
  std::vector<const Weight*> weights_;
  Tensor on_device_;  // [size] int64: addresses
};

}  // namespace switchyard::ops
