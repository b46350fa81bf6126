// A matrix product for tests of the CUDA kernels: operands on host and device, y with poison around it, and the
// expected y in double precision.  The host touches device memory by copies alone, so the tests run on a GPU, too.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <vector>

#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/tensor/dtype.h"

namespace switchyard::test {

// A matrix of any floating dtype on the host, rows `stride` apart, every byte outside of rows and columns kPoison.
class HostMatrix {
 public:
  static constexpr uint8_t kPoison = 0x47;  // a large number in every dtype: a result that includes it is wrong

  HostMatrix() = default;
  HostMatrix(DType dtype, int64_t rows, int64_t columns, int64_t stride);
  void FillRandom(uint32_t seed);  // in [-1, 1), some tiny, some zero

  double Get(int64_t i, int64_t j) const;
  void Set(int64_t i, int64_t j, double value);
  const uint8_t* Row(int64_t i) const { return bytes.data() + i * stride * DTypeBytes(dtype); }
  int64_t RowBytes() const { return columns * DTypeBytes(dtype); }
  // The first byte outside of [0, num_rows) x columns that is no poison, or -1.
  int64_t FirstBreach(int64_t num_rows) const;

  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0, stride = 0;
  std::vector<uint8_t> bytes;
};

// A copy of host memory on the device.
class DeviceCopy {
 public:
  template <class T>
  explicit DeviceCopy(const std::vector<T>& from) : DeviceCopy(from.data(), from.size() * sizeof(T)) {}
  DeviceCopy(const void* from, size_t num_bytes);
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy();

  template <class T = void>
  T* at() const {
    return static_cast<T*>(memory_);
  }
  void Fetch(void* to) const;

 private:
  void* memory_ = nullptr;
  size_t num_bytes_;
};

struct ProductCase {
  DType dtype = DType::kBf16;
  DType y_dtype = DType::kBf16;
  std::vector<int64_t> expert_rows = {};  // dense: one entry
  int64_t n = 0, k = 0;                   // gated: n counts gate and up
  bool gated = false, accumulate = false, bias = false;
  bool gather = false;         // x_rows, over fewer tokens than rows
  int64_t x_stride_extra = 0;  // elements beyond k; an odd number makes rows unaligned
  int64_t y_stride_extra = 8;
  uint32_t seed = 1;
};
std::ostream& operator<<(std::ostream& out, const ProductCase& c);

class Product {
 public:
  explicit Product(const ProductCase& c);

  ops::CudaGemmArgs Dense() const;  // REQUIRES: one entry in expert_rows, no gather
  ops::CudaGemmArgs Grouped() const;
  // What Grouped() has as weights, with those of these experts alone: the others are null.
  std::unique_ptr<DeviceCopy> WeightsOf(const std::vector<int>& experts) const;
  // Back to poison (accumulate: to what was there).
  void ResetY();
  // Waits, fetches y.  The case's expectations fail unless y is right within rounding and the poison whole.
  void Check();
  // y's row as Check() or Fetch() saw it.
  std::vector<uint8_t> RowBits(int64_t row) const;
  void Fetch();

  const ProductCase& product_case() const { return case_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return case_.gated ? case_.n / 2 : case_.n; }
  HostMatrix& x() { return x_; }
  int64_t XRow(int64_t row) const { return case_.gather ? x_rows_[row] : row; }
  // Another product with some of this one's rows and the same weights: rows[i] of this one, per expert.
  std::unique_ptr<Product> Subset(const std::vector<std::vector<int64_t>>& rows) const;

 private:
  void CheckElement(int64_t row, int64_t column, const HostMatrix& w) const;
  void MakeDeviceSide();

  ProductCase case_;
  int64_t rows_ = 0;
  HostMatrix x_, bias_, y_before_, y_;
  std::vector<HostMatrix> weights_;
  std::vector<int32_t> x_rows_, offsets_;
  std::vector<std::unique_ptr<DeviceCopy>> device_weights_;
  std::unique_ptr<DeviceCopy> device_x_, device_bias_, device_y_, device_x_rows_, device_offsets_, device_pointers_;
};

// Whether the first device can run that tile: it may have no wgmma, or less shared memory.
bool DeviceTakesTile(int tile, int64_t experts);

// A call on the legacy stream with a workspace of its own, kept for the process.
ops::CudaCall TestCall(bool deterministic);

}  // namespace switchyard::test
