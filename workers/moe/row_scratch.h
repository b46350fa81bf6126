// Scratch rows whose width and dtype may change from layer to layer; memory grows and is kept.
//
// Thread-compatible.  Rows() loses the contents whenever it has to grow.
#pragma once

#include <cstdint>

#include "workers/tensor/tensor.h"

namespace switchyard {

class RowScratch {
 public:
  // [rows, width], contents undefined.  Always of the same device.
  TensorView Rows(int64_t rows, int64_t width, DType dtype, Device device = Device::Cpu()) {
    const int64_t bytes = rows * width * DTypeBytes(dtype);
    if (bytes > buffer_.bytes()) buffer_ = Buffer(bytes + bytes / 2, device);
    return TensorView(buffer_.data(), dtype, {rows, width}, device);
  }

 private:
  Buffer buffer_;
};

}  // namespace switchyard
