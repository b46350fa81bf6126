// Device memory for tests of kernels: filled and read by copies, with a zone of poison before and after it (the
// destructor fails the test if a zone was written).
//
// The host never looks at device memory directly, so tests that use this run on an emulated device and on a real one.
// Everything happens on the default stream and blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "gtest/gtest.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr size_t kPoisonZone = 256;
inline constexpr unsigned char kPoison = 0xA5;

// `size` elements, 256-byte aligned (or misalign_bytes behind that), all poison until something is uploaded.
template <class Elem>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size, size_t misalign_bytes = 0) : size_(size), misalign_(misalign_bytes) {
    const cudaError_t error = cudaMalloc(&base_, AllBytes());
    if (error != cudaSuccess) {
      ADD_FAILURE() << "cudaMalloc of " << AllBytes() << " bytes: " << cudaGetErrorString(error);
      base_ = nullptr;
      return;
    }
    Fill(kPoison);
  }
  explicit DeviceArray(const std::vector<Elem>& values, size_t misalign_bytes = 0)
      : DeviceArray(values.size(), misalign_bytes) {
    Upload(values);
  }
  DeviceArray(std::initializer_list<Elem> values) : DeviceArray(std::vector<Elem>(values)) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (base_ == nullptr) return;
    const std::vector<unsigned char> all = DownloadAll();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= FirstByte() && i < FirstByte() + bytes()) continue;
      if (all[i] == kPoison) continue;
      ADD_FAILURE() << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(FirstByte())
                    << " was written, the array has " << bytes();
      break;
    }
    EXPECT_EQ(cudaFree(base_), cudaSuccess);
  }

  Elem* get() const { return reinterpret_cast<Elem*>(static_cast<unsigned char*>(base_) + FirstByte()); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(Elem); }

  // REQUIRES: as many as the array has.
  void Upload(const std::vector<Elem>& values) {
    ASSERT_EQ(values.size(), size_);
    UploadBytes(values.data());
  }
  void UploadBytes(const void* from) {
    if (bytes() == 0) return;
    ASSERT_EQ(cudaMemcpy(get(), from, bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  // The contents after all work on any stream; also returns an error of an earlier kernel.
  std::vector<Elem> Download() const {
    std::vector<Elem> values(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (bytes() == 0) return values;
    EXPECT_EQ(cudaMemcpy(values.data(), get(), bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  size_t FirstByte() const { return kPoisonZone + misalign_; }
  size_t AllBytes() const { return FirstByte() + bytes() + kPoisonZone; }
  void Fill(unsigned char byte) {
    const std::vector<unsigned char> all(AllBytes(), byte);
    EXPECT_EQ(cudaMemcpy(base_, all.data(), all.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<unsigned char> DownloadAll() const {
    std::vector<unsigned char> all(AllBytes());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return all;
  }

  size_t size_, misalign_;
  void* base_ = nullptr;
};

// A matrix on the device, rows `stride` elements apart; the bytes between and around rows must stay poison.  Rows begin
// misalign_bytes (a multiple of the element's size) after a 256-byte boundary.
class DeviceMatrix {
 public:
  DeviceMatrix(DType dtype, int64_t rows, int64_t width, int64_t stride, size_t misalign_bytes = 0)
      : dtype_(dtype), rows_(rows), width_(width), stride_(stride), bytes_(SpanBytes(), misalign_bytes) {}
  // The same values, in any layout.
  DeviceMatrix(const TensorView& from, int64_t stride, size_t misalign_bytes = 0)
      : DeviceMatrix(from.dtype(), from.dim(0), from.dim(1), stride, misalign_bytes) {
    std::vector<unsigned char> span(SpanBytes(), kPoison);
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(span.data() + r * stride_ * ElemBytes(),
                  static_cast<const char*>(from.raw()) + r * from.row_stride() * ElemBytes(), width_ * ElemBytes());
    }
    bytes_.Upload(span);
  }
  explicit DeviceMatrix(const TensorView& from) : DeviceMatrix(from, from.dim(1)) {}

  void* get() const { return bytes_.get(); }
  int64_t stride() const { return stride_; }

  // The values, contiguous.
  Tensor Download() const {
    const std::vector<unsigned char> span = bytes_.Download();
    Tensor out(dtype_, {rows_, width_});
    const int64_t row_bytes = width_ * ElemBytes(), stride_bytes = stride_ * ElemBytes();
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(static_cast<char*>(out.view().raw()) + r * row_bytes, span.data() + r * stride_bytes, row_bytes);
      for (int64_t b = row_bytes; b < stride_bytes && r + 1 < rows_; ++b) {
        if (span[r * stride_bytes + b] == kPoison) continue;
        ADD_FAILURE() << "byte " << b << " of row " << r << " was written, rows have " << row_bytes;
        break;
      }
    }
    return out;
  }

 private:
  int64_t ElemBytes() const { return DTypeBytes(dtype_); }
  size_t SpanBytes() const {
    return rows_ == 0 ? 0 : static_cast<size_t>(((rows_ - 1) * stride_ + width_) * ElemBytes());
  }

  DType dtype_;
  int64_t rows_, width_, stride_;
  DeviceArray<unsigned char> bytes_;
};

// The context of launchers in tests: the default stream, and a workspace full of poison.
class CudaCallForTest {
 public:
  explicit CudaCallForTest(int64_t workspace_bytes = int64_t{1} << 20) : workspace_(workspace_bytes) {
    int num_sms = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    call_ = {.stream = nullptr, .device = 0, .num_sms = num_sms, .deterministic = true, .workspace = workspace_.get()};
  }
  const CudaCall& get() const { return call_; }

 private:
  DeviceArray<unsigned char> workspace_;
  CudaCall call_;
};

}  // namespace switchyard::ops
