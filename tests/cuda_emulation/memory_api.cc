// cudaMalloc and its like.
#include "tests/cuda_emulation/allocations.h"
#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

cudaError_t Take(void** pointer, size_t bytes, MemoryKind kind) {
  if (const cudaError_t error = RefuseUnsafe(); error != cudaSuccess) return error;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = Allocate(kind, CurrentDevice(), bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// As CUDA's, these wait for the device.
cudaError_t GiveBack(void* pointer, MemoryKind kind) {
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t error = RefuseUnsafe(); error != cudaSuccess) return error;
  const auto found = FindAllocation(pointer);
  if (!found || found->begin != pointer || found->kind != kind) return cudaErrorInvalidValue;
  if (const cudaError_t error = RunDevice(found->device); error != cudaSuccess) return error;
  return Release(pointer, kind) ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const cudaError_t error = Enter("cudaMalloc"); error != cudaSuccess) return error;
  return Leave(Take(pointer, bytes, MemoryKind::kDevice));
}

cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = Enter("cudaFree"); error != cudaSuccess) return error;
  return Leave(GiveBack(pointer, MemoryKind::kDevice));
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned) {
  if (const cudaError_t error = Enter("cudaMallocHost"); error != cudaSuccess) return error;
  return Leave(Take(pointer, bytes, MemoryKind::kPinned));
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (const cudaError_t error = Enter("cudaHostAlloc"); error != cudaSuccess) return error;
  return Leave(Take(pointer, bytes, MemoryKind::kPinned));
}

cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t error = Enter("cudaFreeHost"); error != cudaSuccess) return error;
  return Leave(GiveBack(pointer, MemoryKind::kPinned));
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  if (const cudaError_t error = Enter("cudaHostRegister"); error != cudaSuccess) return error;
  if (pointer == nullptr || bytes == 0) return Leave(cudaErrorInvalidValue);
  if ((flags & ~(cudaHostRegisterPortable | cudaHostRegisterReadOnly)) != 0) return Leave(cudaErrorInvalidValue);
  if ((flags & cudaHostRegisterReadOnly) != 0 && !RegistersReadOnly()) return Leave(cudaErrorNotSupported);
  return Leave(RegisterHost(pointer, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (const cudaError_t error = Enter("cudaHostUnregister"); error != cudaSuccess) return error;
  return Leave(UnregisterHost(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
  if (const cudaError_t error = Enter("cudaHostGetDevicePointer"); error != cudaSuccess) return error;
  const auto found = FindAllocation(host_pointer);
  if (!found || found->kind == MemoryKind::kDevice) return Leave(cudaErrorInvalidValue);
  *device_pointer = host_pointer;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const cudaError_t error = Enter("cudaMemGetInfo"); error != cudaSuccess) return error;
  const size_t total = MemoryCapacity(), used = MemoryInUse(CurrentDevice());
  *total_bytes = total;
  *free_bytes = total > used ? total - used : 0;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (const cudaError_t error = Enter("cudaPointerGetAttributes"); error != cudaSuccess) return error;
  void* same = const_cast<void*>(pointer);
  const auto found = FindAllocation(pointer);
  if (!found) {
    *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, same};
  } else if (found->kind == MemoryKind::kDevice) {
    *attributes = {cudaMemoryTypeDevice, found->device, same, nullptr};
  } else {
    *attributes = {cudaMemoryTypeHost, found->device, same, same};
  }
  return cudaSuccess;
}
