#include "workers/tensor/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/cuda/cuda_queue.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard {
namespace {

class RegisteredMemory : public HostPin {
 public:
  explicit RegisteredMemory(void* memory) : memory_(memory) {}
  ~RegisteredMemory() override { cudaHostUnregister(memory_); }

 private:
  void* const memory_;
};

class Backend : public DeviceBackend {
 public:
  int NumDevices() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();  // no driver is no error: there are no devices
    return 0;
  }

  absl::StatusOr<DeviceDescription> Describe(int index) override {
    if (index < 0 || index >= NumDevices()) {
      return absl::NotFoundError(absl::StrCat("no device cuda:", index, ": ", NumDevices(), " found",
                                              NumDevices() == 0 ? " (is the driver installed?)" : ""));
    }
    cudaDeviceProp properties;
    SY_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
    size_t free_bytes = 0, total_bytes = 0;
    SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
    SY_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    DeviceDescription description;
    description.name = properties.name;
    description.capability = absl::StrCat(properties.major, ".", properties.minor);
    description.num_multiprocessors = properties.multiProcessorCount;
    description.total_bytes = static_cast<int64_t>(total_bytes);
    description.free_bytes = static_cast<int64_t>(free_bytes);
    return description;
  }

  absl::StatusOr<void*> Allocate(int index, int64_t bytes) override {
    SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (error != cudaErrorMemoryAllocation) {
      RETURN_IF_ERROR(CudaStatus("cudaMalloc", error));
      return memory;
    }
    cudaGetLastError();  // said below; not sticky
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(absl::StrCat("cuda:", index, ": out of memory: needed ", bytes,
                                                     " bytes, available ", free_bytes, " of ", total_bytes));
  }

  void Free(int index, void* memory) override {
    cudaSetDevice(index);
    cudaFree(memory);
  }

  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of pinned host memory"));
    }
    RETURN_IF_ERROR(CudaStatus("cudaHostAlloc", error));
    return memory;
  }

  void FreePinned(void* memory) override { cudaFreeHost(memory); }

  absl::StatusOr<std::unique_ptr<HostPin>> Pin(void* memory, int64_t bytes) override {
    const cudaError_t error = cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable);
    if (error != cudaSuccess) cudaGetLastError();  // not sticky
    RETURN_IF_ERROR(CudaStatus("cudaHostRegister", error));
    return std::make_unique<RegisteredMemory>(memory);
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(int index, const DeviceQueueOptions& options) override {
    return NewCudaQueue(index, options);
  }
};

}  // namespace

DeviceBackend* CudaBackend() {
  static Backend* const backend = new Backend;  // until the process ends: tensors may die later than statics
  return backend;
}

}  // namespace switchyard
