// IntView: borrowed, contiguous int32 numbers on some device: token ids, row numbers, offsets.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class IntView {
 public:
  IntView() = default;
  // Implicit, so that a span or vector is usable wherever a view is.
  IntView(absl::Span<const int32_t> numbers)  // NOLINT
      : data_(numbers.data()), size_(static_cast<int64_t>(numbers.size())) {}
  IntView(absl::Span<int32_t> numbers) : IntView(absl::Span<const int32_t>(numbers)) {}  // NOLINT
  // For arguments only: the list lives as long as the call.
  IntView(std::initializer_list<int32_t> numbers)  // NOLINT
      : IntView(absl::MakeConstSpan(numbers.begin(), numbers.size())) {}
  IntView(const std::vector<int32_t>& numbers) : IntView(absl::MakeConstSpan(numbers)) {}  // NOLINT
  // REQUIRES: contiguous int32.
  explicit IntView(const TensorView& numbers)
      : data_(numbers.data<int32_t>()), size_(numbers.NumElements()), device_(numbers.device()) {
    SY_CHECK(numbers.contiguous());
  }

  const int32_t* data() const { return data_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Device device() const { return device_; }
  // REQUIRES: on the CPU.
  absl::Span<const int32_t> span() const {
    SY_CHECK(device_.is_cpu());
    return absl::MakeConstSpan(data_, static_cast<size_t>(size_));
  }
  IntView Part(int64_t begin, int64_t count) const {
    IntView part = *this;
    part.data_ += begin;
    part.size_ = count;
    return part;
  }

 private:
  const int32_t* data_ = nullptr;
  int64_t size_ = 0;
  Device device_ = Device::Cpu();
};

}  // namespace switchyard
