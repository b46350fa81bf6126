// Scratch rows whose width and dtype may change from layer to layer; memory grows and is kept.  It takes what the
// largest request so far needed, and at most a 64th of that more: the first is allocated exactly, a larger one rounded
// up, so that requests that grow row by row allocate at most 64 times until they have doubled.  Growing loses the
// contents.  Thread-compatible.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class RowScratch {
 public:
  // [rows, width] on the CPU, contents undefined.
  TensorView Rows(int64_t rows, int64_t width, DType dtype) { return *Take(rows, width, dtype, Device::Cpu()); }
  // The same on a device, always the same one.  ResourceExhausted: it has not even exactly so much.
  absl::StatusOr<TensorView> Take(int64_t rows, int64_t width, DType dtype, Device device) {
    const int64_t bytes = rows * width * DTypeBytes(dtype);
    if (bytes > buffer_.bytes()) {
      const int64_t asked = buffer_.bytes() > 0 ? RoundedUp(bytes) : bytes;
      buffer_ = Buffer();  // never both
      absl::StatusOr<Buffer> larger = Buffer::Allocate(asked, device);
      if (!larger.ok()) larger = Buffer::Allocate(bytes, device);
      if (!larger.ok()) return larger.status();
      buffer_ = *std::move(larger);
    }
    if (spoils_ && device.is_cpu() && bytes > 0) std::memset(buffer_.data(), 0xff, static_cast<size_t>(bytes));
    return TensorView(buffer_.data(), dtype, {rows, width}, device);
  }
  // For tests, before there are threads: from now on rows are NaN in every dtype when they are taken.
  static void Spoil() { spoils_ = true; }
  int64_t bytes() const { return buffer_.bytes(); }  // that it has allocated
  // Arrays of so many int32, each at a multiple of 256 bytes.
  absl::StatusOr<std::vector<TensorView>> TakeArrays(const std::vector<int64_t>& counts, Device device) {
    const auto round_up = [](int64_t count) { return (count + 63) / 64 * 64; };
    int64_t total = 0;
    for (const int64_t count : counts) total += round_up(count);
    ASSIGN_OR_RETURN(const TensorView all, Take(total, 1, DType::kI32, device));
    std::vector<TensorView> arrays;
    int64_t begin = 0;
    for (const int64_t count : counts) {
      arrays.push_back(all.Reshape({total}).Rows(begin, count));
      begin += round_up(count);
    }
    return arrays;
  }

 private:
  // To the next multiple of a 64th of the power of two that is not above it.
  static int64_t RoundedUp(int64_t bytes) {
    const auto unit = static_cast<int64_t>(std::max<uint64_t>(1, std::bit_floor(static_cast<uint64_t>(bytes)) / 64));
    return (bytes + unit - 1) / unit * unit;
  }

  inline static bool spoils_ = false;
  Buffer buffer_;
};

// What the activation of experts reads, and what it makes.
struct HiddenScratch {
  RowScratch sums, hidden;
  int64_t bytes() const { return sums.bytes() + hidden.bytes(); }
};

// Memory of one kind of a program's buffers (scheduler/pipeline/moe_schedule.h), by slot; a slot stays where it is.
template <class Scratch>
class ScratchSlots {
 public:
  Scratch& operator[](int slot) {
    SY_CHECK_GE(slot, 0);
    while (slots_.size() <= static_cast<size_t>(slot)) slots_.emplace_back();
    return slots_[static_cast<size_t>(slot)];
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Scratch& slot : slots_) sum += slot.bytes();
    return sum;
  }

 private:
  std::deque<Scratch> slots_;
};

}  // namespace switchyard::moe
