// Tensor owns memory; TensorView borrows it.  Row-major; the first dimension may have a stride of its own, so that a
// range of columns of a matrix (the q part of a fused qkv row, say) is a view, too.
// Thread-compatible.  Neither checks bounds: ops check shapes in their op.cc.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "scheduler/base/check.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"
#include "workers/tensor/huge_pages.h"

namespace switchyard {

inline constexpr int kMaxRank = 5;

struct Shape {
  std::array<int64_t, kMaxRank> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    SY_CHECK_LE(static_cast<int>(list.size()), kMaxRank);
    for (int64_t d : list) dims[rank++] = d;
  }
  int64_t operator[](int i) const { return dims[i]; }
  int64_t NumElements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool operator==(const Shape& other) const { return rank == other.rank && dims == other.dims; }
  std::string ToString() const;  // "[4, 128]"
};

class TensorView {
 public:
  TensorView() = default;
  // A view of contiguous rows.
  TensorView(void* data, DType dtype, Shape shape, Device device = Device::Cpu())
      : data_(data), dtype_(dtype), device_(device), shape_(shape), row_stride_(RowElements(shape)) {}

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t NumElements() const { return shape_.NumElements(); }
  int64_t row_stride() const { return row_stride_; }  // elements from one index of dimension 0 to the next
  bool contiguous() const { return row_stride_ == RowElements(shape_) || shape_[0] <= 1; }
  void* raw() const { return data_; }
  bool empty() const { return NumElements() == 0; }

  // REQUIRES: Elem is the dtype.
  template <class Elem>
  Elem* data() const {
    SY_CHECK(DTypeOf<Elem>::value == dtype_);
    return static_cast<Elem*>(data_);
  }
  template <class Elem>
  Elem* row(int64_t i) const {
    return data<Elem>() + i * row_stride_;
  }

  // Rows [begin, begin + count) of dimension 0.
  TensorView Rows(int64_t begin, int64_t count) const {
    TensorView v = *this;
    v.data_ = static_cast<char*>(data_) + begin * row_stride_ * DTypeBytes(dtype_);
    v.shape_.dims[0] = count;
    return v;
  }
  // Columns [begin, begin + count) of a matrix.  REQUIRES: rank 2.
  TensorView Columns(int64_t begin, int64_t count) const {
    SY_CHECK_EQ(rank(), 2);
    TensorView v = *this;
    v.data_ = static_cast<char*>(data_) + begin * DTypeBytes(dtype_);
    v.shape_.dims[1] = count;
    return v;
  }
  // The same elements under another shape.  REQUIRES: contiguous, same count.
  TensorView Reshape(Shape shape) const {
    SY_CHECK(contiguous());
    SY_CHECK_EQ(shape.NumElements(), NumElements());
    return TensorView(data_, dtype_, shape, device_);
  }
  std::string ToString() const;  // "bf16 [4, 128] cpu"

 private:
  static int64_t RowElements(const Shape& shape) {
    int64_t n = 1;
    for (int i = 1; i < shape.rank; ++i) n *= shape[i];
    return n;
  }

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_ = Device::Cpu();
  Shape shape_;
  int64_t row_stride_ = 0;
};

// Devices' memory begins at a multiple of so many bytes.
inline constexpr int64_t kDeviceAlignment = 256;

// Uninitialised memory of one device, counted by MemoryInUse.  On the CPU it is 64-byte aligned and, from
// kHugePageBytes on, backed by huge pages if the system has them (madvise); on a device it is aligned to
// kDeviceAlignment, and the host cannot access it.  The constructor aborts when memory runs out; Allocate returns an
// error.
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t bytes, Device device);
  // Errors: ResourceExhausted with needed and available bytes, the device's others.
  static absl::StatusOr<Buffer> Allocate(int64_t bytes, Device device);
  // Likewise, but on the CPU its huge pages have other such buffers, too, and one of less than kHugePageBytes also has
  // huge pages: for many of a few MB, of which each would waste half of one.
  static absl::StatusOr<Buffer> AllocateBesideOthers(int64_t bytes, Device device);
  // Borrows memory that outlives this, and that its owner counts.
  static Buffer Over(void* memory, int64_t bytes, Device device);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void Hold(const MappedMemory& memory);

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_bytes_ = 0;  // > 0: from mmap, to be unmapped
  bool borrowed_ = false;
  Device device_ = Device::Cpu();
};

// Bytes held by Buffers of this kind of device in this process.
int64_t MemoryInUse(DeviceKind kind);

// Host memory that devices copy from and to asynchronously.  MemoryInUse does not count it.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Pins memory for devices of this kind; for the CPU it is plain memory.
  static absl::StatusOr<PinnedBuffer> Allocate(int64_t bytes, DeviceKind kind);
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  DeviceKind kind_ = DeviceKind::kCpu;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape, Device device = Device::Cpu())
      : buffer_(shape.NumElements() * DTypeBytes(dtype), device), view_(buffer_.data(), dtype, shape, device) {}
  static Tensor Zeros(DType dtype, Shape shape);                                    // on the CPU
  static absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape, Device device);  // as Buffer's
  static Tensor Over(const TensorView& memory);                                     // likewise.  REQUIRES: contiguous

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is usable wherever a view is
  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  int64_t dim(int i) const { return view_.dim(i); }
  template <class Elem>
  Elem* data() const {
    return view_.data<Elem>();
  }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
  TensorView view_;
};

// A scratch matrix that grows and is reused from step to step, so that a steady step allocates nothing.  Rows(n)
// returns the first n rows; growing loses the contents.
class ScratchTensor {
 public:
  ScratchTensor() = default;
  // row_shape: the dimensions behind the first.
  ScratchTensor(DType dtype, Shape row_shape, Device device = Device::Cpu())
      : dtype_(dtype), row_shape_(row_shape), device_(device) {}
  TensorView Rows(int64_t rows);
  // Grows now; ResourceExhausted where Rows would abort.
  absl::Status Reserve(int64_t rows);

 private:
  DType dtype_ = DType::kF32;
  Shape row_shape_;
  Device device_ = Device::Cpu();
  Tensor tensor_;
  int64_t capacity_ = 0;
};

}  // namespace switchyard
