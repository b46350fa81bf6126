#include "workers/tensor/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

constexpr int64_t kLeastBesideOthers = 64 << 10;  // smaller ones would waste the rest of a small page
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
constexpr bool kMayBeBesideOthers = false;  // what writes beyond its end shall be noticed
#else
constexpr bool kMayBeBesideOthers = true;
#endif

std::atomic<int64_t> cpu_bytes{0}, cuda_bytes{0};

std::atomic<int64_t>& BytesInUse(DeviceKind kind) { return kind == DeviceKind::kCpu ? cpu_bytes : cuda_bytes; }

}  // namespace

const char* DTypeName(DType dtype) {
  static constexpr const char* kNames[] = {"fp32", "fp64", "bf16", "fp16", "int32", "int64", "uint8"};
  return kNames[static_cast<int>(dtype)];
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(dims.begin(), dims.begin() + rank, ", "), "]");
}

std::string TensorView::ToString() const {
  return absl::StrCat(DTypeName(dtype_), " ", shape_.ToString(), " ", device_.ToString());
}

absl::StatusOr<Buffer> Buffer::Allocate(int64_t bytes, Device device) {
  if (device.is_cpu()) return Buffer(bytes, device);
  SY_CHECK_GE(bytes, 0);
  ASSIGN_OR_RETURN(DeviceBackend* const backend, BackendOf(device.kind));
  Buffer buffer;
  ASSIGN_OR_RETURN(buffer.data_, backend->Allocate(device.index, std::max<int64_t>(bytes, 1)));
  buffer.bytes_ = bytes;
  buffer.device_ = device;
  BytesInUse(device.kind).fetch_add(bytes);
  return buffer;
}

absl::StatusOr<Buffer> Buffer::AllocateBesideOthers(int64_t bytes, Device device) {
  if (!device.is_cpu() || bytes < kLeastBesideOthers || !kMayBeBesideOthers) return Allocate(bytes, device);
  Buffer buffer;
  buffer.Hold(MapBesideOthers(bytes));
  buffer.bytes_ = bytes;
  cpu_bytes.fetch_add(bytes);
  return buffer;
}

void Buffer::Hold(const MappedMemory& memory) {
  data_ = memory.data;
  mapped_bytes_ = memory.bytes;
}

Buffer Buffer::Over(void* memory, int64_t bytes, Device device) {
  Buffer buffer;
  buffer.data_ = memory;
  buffer.bytes_ = bytes;
  buffer.borrowed_ = true;
  buffer.device_ = device;
  return buffer;
}

Buffer::Buffer(int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  SY_CHECK_GE(bytes, 0);
  if (!device.is_cpu()) {
    bytes_ = 0;
    absl::StatusOr<Buffer> buffer = Allocate(bytes, device);
    SY_CHECK_OK(buffer.status());
    *this = *std::move(buffer);
    return;
  }
  if (bytes >= kHugePageBytes) {
    Hold(MapHugePages(bytes));
  } else {
    data_ = std::aligned_alloc(64, static_cast<size_t>((std::max<int64_t>(bytes, 1) + 63) / 64 * 64));
    SY_CHECK(data_ != nullptr);
  }
  cpu_bytes.fetch_add(bytes_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(borrowed_, other.borrowed_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr || borrowed_) return;
  if (!device_.is_cpu()) {
    RegisteredBackend(device_.kind).Free(device_.index, data_);
  } else if (mapped_bytes_ > 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
  BytesInUse(device_.kind).fetch_sub(bytes_);
}

int64_t MemoryInUse(DeviceKind kind) { return BytesInUse(kind).load(); }

absl::StatusOr<PinnedBuffer> PinnedBuffer::Allocate(int64_t bytes, DeviceKind kind) {
  PinnedBuffer buffer;
  void* memory = nullptr;
  if (kind == DeviceKind::kCpu) {
    memory = std::aligned_alloc(64, static_cast<size_t>((std::max<int64_t>(bytes, 1) + 63) / 64 * 64));
    SY_CHECK(memory != nullptr);
  } else {
    ASSIGN_OR_RETURN(DeviceBackend* const backend, BackendOf(kind));
    ASSIGN_OR_RETURN(memory, backend->AllocatePinned(std::max<int64_t>(bytes, 1)));
  }
  buffer.data_ = static_cast<char*>(memory);
  buffer.bytes_ = bytes;
  buffer.kind_ = kind;
  return buffer;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  if (kind_ == DeviceKind::kCpu) {
    std::free(data_);
  } else {
    RegisteredBackend(kind_).FreePinned(data_);
  }
}

absl::StatusOr<Tensor> Tensor::Allocate(DType dtype, Shape shape, Device device) {
  Tensor tensor;
  ASSIGN_OR_RETURN(tensor.buffer_, Buffer::Allocate(shape.NumElements() * DTypeBytes(dtype), device));
  tensor.view_ = TensorView(tensor.buffer_.data(), dtype, shape, device);
  return tensor;
}

Tensor Tensor::Over(const TensorView& memory) {
  SY_CHECK(memory.contiguous());
  Tensor tensor;
  tensor.buffer_ = Buffer::Over(memory.raw(), memory.NumElements() * DTypeBytes(memory.dtype()), memory.device());
  tensor.view_ = memory;
  return tensor;
}

Tensor Tensor::Zeros(DType dtype, Shape shape) {
  Tensor tensor(dtype, shape);
  std::memset(tensor.buffer_.data(), 0, static_cast<size_t>(tensor.buffer_.bytes()));
  return tensor;
}

absl::Status ScratchTensor::Reserve(int64_t rows) {
  if (rows <= capacity_ && capacity_ > 0) return absl::OkStatus();
  Shape shape = row_shape_;
  for (int i = shape.rank; i > 0; --i) shape.dims[i] = shape.dims[i - 1];
  shape.dims[0] = std::max<int64_t>(rows, 1);
  ++shape.rank;
  ASSIGN_OR_RETURN(tensor_, Tensor::Allocate(dtype_, shape, device_));
  capacity_ = shape.dims[0];
  return absl::OkStatus();
}

TensorView ScratchTensor::Rows(int64_t rows) {
  if (rows > capacity_ || capacity_ == 0) SY_CHECK_OK(Reserve(std::max<int64_t>(rows, capacity_ + capacity_ / 2)));
  return tensor_.view().Rows(0, rows);
}

}  // namespace switchyard
