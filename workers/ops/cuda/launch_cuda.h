// Launches kernels: Launch(ConfigOf(call, Grid(blocks), kThreads), SomeKernel<Elem>, args).
//
// Never blocks and never allocates on the device, so it may be captured into a graph.  Thread-safe.  REQUIRES: the
// current device is the stream's.  Returns the launch's own error only: the error of a kernel comes from a later call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops::cuda {

struct LaunchConfig {
  dim3 grid;  // blocks; no dimension 0
  dim3 block;
  size_t shared_bytes = 0;  // dynamic shared memory, at most 227 KiB on Hopper, 163 KiB on an A100
  cudaStream_t stream = nullptr;
  // May begin while the kernel before it on the stream still runs (programmatic dependent launch; where its code is for
  // compute capability 9.0 or newer, else it changes nothing).  REQUIRES: every thread calls WaitForPrecedingKernel()
  // before it reads or writes what that kernel, or one before it, touches.
  bool dependent = false;
};

inline dim3 Grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}
// The configuration of a dependent launch on the call's stream.
inline LaunchConfig ConfigOf(const CudaCall& call, dim3 grid, dim3 block, int64_t shared_bytes = 0) {
  return {.grid = grid,
          .block = block,
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .stream = static_cast<cudaStream_t>(call.stream),
          .dependent = true};
}

// A block may have 48 KB, static and dynamic shared memory together, without a permission.  Kernels with more dynamic
// memory than this need one; no kernel here has more than the other 32 KB of static shared memory.
inline constexpr size_t kSharedBytesWithoutAsking = 16 << 10;
inline constexpr int kMaxDevicesPerProcess = 64;
// Virtual architecture from whose PTX on a kernel's code has programmatic dependent launches.
inline constexpr int kDependentPtxVersion = 90;

// Whether the kernel's code for the device was compiled with WaitForPrecedingKernel() in it.  PTX for an older
// architecture was not, and a newer device may run it: then the kernel must not begin early.  Asks the driver once.
inline cudaError_t WaitsWhenDependent(const void* kernel, int device, bool* waits) {
  static std::mutex mu;
  static std::map<std::pair<const void*, int>, bool> known;  // guarded by mu
  std::lock_guard lock(mu);
  const auto [entry, is_new] = known.try_emplace({kernel, device});
  if (is_new) {
    cudaFuncAttributes attributes = {};
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
      known.erase(entry);
      return error;
    }
    entry->second = attributes.ptxVersion >= kDependentPtxVersion;
  }
  *waits = entry->second;
  return cudaSuccess;
}

// Permits the kernel `bytes` of dynamic shared memory on the device, unless it has the permission.
inline cudaError_t AllowSharedBytes(const void* kernel, int device, size_t bytes) {
  static std::mutex mu;
  static std::map<std::pair<const void*, int>, size_t> allowed;  // guarded by mu
  std::lock_guard lock(mu);
  size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

template <class... Parameters, class... Arguments>
cudaError_t Launch(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (config.shared_bytes > kSharedBytesWithoutAsking) {
    const cudaError_t error = AllowSharedBytes(reinterpret_cast<const void*>(kernel), device, config.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute = {};
  unsigned int num_attributes = 0;
  if (config.dependent) {
    bool waits = false;
    const cudaError_t error = WaitsWhenDependent(reinterpret_cast<const void*>(kernel), device, &waits);
    if (error != cudaSuccess) return error;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    num_attributes = waits ? 1 : 0;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = config.stream;
  launch.attrs = &attribute;
  launch.numAttrs = num_attributes;
  return cudaLaunchKernelEx(&launch, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace switchyard::ops::cuda
