// Launches, and what kernels may ask for.
#include "tests/cuda_emulation/launch.h"

#include <map>
#include <mutex>

#include "cuda_emulation/launch_api.h"
#include "tests/cuda_emulation/allocations.h"
#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

// 48 KB for static and dynamic shared memory together; how much a kernel has of the former is unknown here, so it is
// taken for 16 KB.
constexpr size_t kSharedWithoutAsking = (48 - 16) << 10;

std::mutex mu;
std::map<std::pair<const void*, int>, size_t> max_shared;  // by kernel and device

size_t MaxShared(const void* kernel) {
  std::lock_guard lock(mu);
  const auto found = max_shared.find({kernel, CurrentDevice()});
  return found == max_shared.end() ? kSharedWithoutAsking : found->second;
}

cudaError_t CheckShape(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || uint64_t{block.x} * block.y * block.z > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  return grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

cudaError_t ReadAttributes(const cudaLaunchConfig_t& config, bool* dependent) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        *dependent = attribute.val.programmaticStreamSerializationAllowed != 0;
        if (*dependent && ComputeCapability() < 90) return cudaErrorNotSupported;
        break;
      case cudaLaunchAttributeClusterDimension: {
        const auto& c = attribute.val.clusterDim;
        if (c.x != 1 || c.y != 1 || c.z != 1) return cudaErrorNotSupported;
        break;
      }
      case cudaLaunchAttributeCooperative:
        if (attribute.val.cooperative != 0) return cudaErrorNotSupported;
        break;
      default:
        break;  // hints
    }
  }
  return cudaSuccess;
}

// A pointer into pageable host memory counts as a mistake, although a kernel that does not use it would not notice.
cudaError_t CheckPointers(const void* kernel, const LaunchPointers& pointers) {
  for (int i = 0; i < pointers.count; ++i) {
    const void* pointer = pointers.pointers[i];
    if (pointer == nullptr || FindAllocation(pointer, /*end_too=*/true)) continue;
    std::fprintf(stderr, "cuda_emulation: kernel %s: pointer %d of its parameters is no memory of a device: %s\n",
                 KernelName(kernel).c_str(), i, DescribeAddress(pointer).c_str());
    return cudaErrorIllegalAddress;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t LaunchGrid(const cudaLaunchConfig_t& config, const void* kernel, const LaunchPointers& pointers,
                       std::function<void()> call_kernel) {
  if (const cudaError_t error = Enter("cudaLaunchKernelEx"); error != cudaSuccess) return error;
  if (kernel == nullptr) return Leave(cudaErrorInvalidDeviceFunction);
  if (const cudaError_t error = CheckShape(config); error != cudaSuccess) return Leave(error);
  if (config.dynamicSmemBytes > MaxShared(kernel)) return Leave(cudaErrorInvalidValue);
  bool dependent = false;
  if (const cudaError_t error = ReadAttributes(config, &dependent); error != cudaSuccess) return Leave(error);
  const int device = DeviceOfStream(config.stream);
  if (device != CurrentDevice()) return Leave(cudaErrorInvalidResourceHandle);
  Grid grid{config.gridDim, config.blockDim, config.dynamicSmemBytes, kernel, dependent, std::move(call_kernel)};
  return Leave(Enqueue(config.stream, "kernel", [grid = std::move(grid), pointers]() -> cudaError_t {
    if (const cudaError_t error = CheckPointers(grid.kernel, pointers); error != cudaSuccess) return error;
    return static_cast<cudaError_t>(RunGrid(grid));
  }));
}

}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = Enter("cudaFuncSetAttribute"); error != cudaSuccess) return error;
  if (kernel == nullptr) return Leave(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > MaxSharedBytesPerBlock()) return Leave(cudaErrorInvalidValue);
  std::lock_guard lock(mu);
  max_shared[{kernel, CurrentDevice()}] = static_cast<size_t>(value);
  return cudaSuccess;
}

// Registers and static shared memory are unknown to the emulation.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (const cudaError_t error = Enter("cudaFuncGetAttributes"); error != cudaSuccess) return error;
  if (kernel == nullptr) return Leave(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = PtxVersion();
  attributes->binaryVersion = ComputeCapability();
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(MaxShared(kernel));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int block_size,
                                                          size_t shared_bytes) {
  if (const cudaError_t error = Enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor"); error != cudaSuccess) {
    return error;
  }
  if (kernel == nullptr || block_size <= 0 || block_size > 1024) return Leave(cudaErrorInvalidValue);
  const int by_threads = 2048 / ((block_size + 31) / 32 * 32);
  const int by_shared = static_cast<int>((MaxSharedBytesPerBlock() + 1024) / (shared_bytes + 1024));
  *blocks = shared_bytes > MaxShared(kernel) ? 0 : std::min({by_threads, by_shared, 32});
  return cudaSuccess;
}
