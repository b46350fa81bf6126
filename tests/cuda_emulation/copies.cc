// Copies and fills.  Pageable host memory behaves as CUDA says: it is read before the call returns, and a copy into it
// is done when the call returns.  Page-locked memory is read and written when the stream runs.
#include <cstring>
#include <vector>

#include "tests/cuda_emulation/allocations.h"
#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

enum class Place { kDevice, kPinned, kPageable, kBad };

// Rows of `width` bytes, `pitch` apart.
struct Rows {
  char* begin;
  size_t pitch;
};
struct CopyJob {
  Rows to, from;
  size_t width, height;
  cudaMemcpyKind kind;
};

Place PlaceOf(const Rows& rows, size_t width, size_t height) {
  const size_t bytes = rows.pitch * (height - 1) + width;
  const auto found = FindAllocation(rows.begin);
  if (!found) return Place::kPageable;
  if (rows.begin + bytes > found->begin + found->bytes) return Place::kBad;
  return found->kind == MemoryKind::kDevice ? Place::kDevice : Place::kPinned;
}

bool KindFits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice, from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

void CopyRows(const CopyJob& job) {
  for (size_t i = 0; i < job.height; ++i) {
    std::memmove(job.to.begin + i * job.to.pitch, job.from.begin + i * job.from.pitch, job.width);
  }
}

cudaError_t EnqueueCopy(CopyJob job, cudaStream_t handle) {
  if (job.to.pitch < job.width || job.from.pitch < job.width) return cudaErrorInvalidPitchValue;
  if (job.width == 0 || job.height == 0) return cudaSuccess;
  if (job.to.begin == nullptr || job.from.begin == nullptr) return cudaErrorInvalidValue;
  const Place to = PlaceOf(job.to, job.width, job.height), from = PlaceOf(job.from, job.width, job.height);
  if (job.kind < cudaMemcpyHostToHost || job.kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (to == Place::kBad || from == Place::kBad || !KindFits(job.kind, to, from)) return cudaErrorInvalidValue;
  const auto stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (to == Place::kDevice && from != Place::kDevice) CountUpload(job.width * job.height);
  const bool pageable = to == Place::kPageable || from == Place::kPageable;
  if (pageable && IsCaptured(stream)) return RefuseIfCaptured(stream);
  if (from != Place::kPageable) {
    const cudaError_t error = Enqueue(handle, "memcpy", [job] { return CopyRows(job), cudaSuccess; });
    return error == cudaSuccess && to == Place::kPageable ? RunUntil(EndOf(stream)) : error;
  }
  std::vector<char> staged(job.width * job.height);
  for (size_t i = 0; i < job.height; ++i) {
    std::memcpy(staged.data() + i * job.width, job.from.begin + i * job.from.pitch, job.width);
  }
  const cudaError_t error = Enqueue(handle, "memcpy", [job, staged = std::move(staged)]() mutable {
    job.from = {staged.data(), job.width};
    return CopyRows(job), cudaSuccess;
  });
  return error == cudaSuccess && to == Place::kPageable ? RunUntil(EndOf(stream)) : error;
}

cudaError_t EnqueueFill(Rows to, int value, size_t width, size_t height, cudaStream_t handle) {
  if (to.pitch < width) return cudaErrorInvalidPitchValue;
  if (width == 0 || height == 0) return cudaSuccess;
  const Place place = PlaceOf(to, width, height);
  if (place != Place::kDevice && place != Place::kPinned) return cudaErrorInvalidValue;
  return Enqueue(handle, "memset", [=] {
    for (size_t i = 0; i < height; ++i) std::memset(to.begin + i * to.pitch, value, width);
    return cudaSuccess;
  });
}

Rows RowsAt(const void* begin, size_t pitch) { return {static_cast<char*>(const_cast<void*>(begin)), pitch}; }

// The calls without a stream go through stream 0 and wait.
cudaError_t AndWait(cudaError_t error) {
  if (error == cudaSuccess) error = RefuseUnsafe();
  return Leave(error != cudaSuccess ? error : RunUntil(EndOf(FindStream(nullptr))));
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = Enter("cudaMemcpy"); error != cudaSuccess) return error;
  return AndWait(EnqueueCopy({RowsAt(to, bytes), RowsAt(from, bytes), bytes, 1, kind}, nullptr));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpyAsync"); error != cudaSuccess) return error;
  return Leave(EnqueueCopy({RowsAt(to, bytes), RowsAt(from, bytes), bytes, 1, kind}, stream));
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  if (const cudaError_t error = Enter("cudaMemcpy2D"); error != cudaSuccess) return error;
  return AndWait(EnqueueCopy({RowsAt(to, to_pitch), RowsAt(from, from_pitch), width, height, kind}, nullptr));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpy2DAsync"); error != cudaSuccess) return error;
  return Leave(EnqueueCopy({RowsAt(to, to_pitch), RowsAt(from, from_pitch), width, height, kind}, stream));
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  if (const cudaError_t error = Enter("cudaMemcpyPeer"); error != cudaSuccess) return error;
  return AndWait(EnqueueCopy({RowsAt(to, bytes), RowsAt(from, bytes), bytes, 1, cudaMemcpyDeviceToDevice}, nullptr));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpyPeerAsync"); error != cudaSuccess) return error;
  return Leave(EnqueueCopy({RowsAt(to, bytes), RowsAt(from, bytes), bytes, 1, cudaMemcpyDeviceToDevice}, stream));
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const cudaError_t error = Enter("cudaMemset"); error != cudaSuccess) return error;
  return Leave(EnqueueFill(RowsAt(to, bytes), value, bytes, 1, nullptr));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemsetAsync"); error != cudaSuccess) return error;
  return Leave(EnqueueFill(RowsAt(to, bytes), value, bytes, 1, stream));
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemset2DAsync"); error != cudaSuccess) return error;
  return Leave(EnqueueFill(RowsAt(to, pitch), value, width, height, stream));
}
