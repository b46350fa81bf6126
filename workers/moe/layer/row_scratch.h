// Scratch rows whose width and dtype may change from layer to layer; memory grows and is kept.  It begins with as much
// as is asked for, so that what is reserved is known; when it has to grow it takes half as much more.
//
// Thread-compatible.  Rows() and Take() lose the contents whenever they have to grow.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class RowScratch {
 public:
  // [rows, width] on the CPU, contents undefined.
  TensorView Rows(int64_t rows, int64_t width, DType dtype) { return *Take(rows, width, dtype, Device::Cpu()); }
  // The same on a device, always the same one.  ResourceExhausted: it has not so much, not even exactly so much.
  absl::StatusOr<TensorView> Take(int64_t rows, int64_t width, DType dtype, Device device) {
    const int64_t bytes = rows * width * DTypeBytes(dtype);
    if (bytes > buffer_.bytes()) {
      const int64_t more = buffer_.bytes() > 0 ? bytes / 2 : 0;
      buffer_ = Buffer();  // never both
      absl::StatusOr<Buffer> larger = Buffer::Allocate(bytes + more, device);
      if (!larger.ok()) larger = Buffer::Allocate(bytes, device);
      if (!larger.ok()) return larger.status();
      buffer_ = *std::move(larger);
    }
    return TensorView(buffer_.data(), dtype, {rows, width}, device);
  }

 private:
  Buffer buffer_;
};

}  // namespace switchyard::moe
