// Launches of kernels, and the calls of the runtime API that are templates.
#pragma once

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_emulation/runtime_api.h"

namespace cuda_emulation {

// One pointer argument of a launch: it must be of the device or page-locked.
struct LaunchPointers {
  const void* pointers[64];
  int count = 0;
  template <class Value>
  void Add(const Value& value) {
    if constexpr (std::is_pointer_v<Value> && !std::is_function_v<std::remove_pointer_t<Value>>) {
      if (count < 64) pointers[count++] = reinterpret_cast<const void*>(value);
    }
  }
};

// Puts the grid on the config's stream.  call_kernel runs one thread of it.
cudaError_t LaunchGrid(const cudaLaunchConfig_t& config, const void* kernel, const LaunchPointers& pointers,
                       std::function<void()> call_kernel);

}  // namespace cuda_emulation

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  cuda_emulation::LaunchPointers pointers;
  std::apply([&](const auto&... value) { (pointers.Add(value), ...); }, values);
  return cuda_emulation::LaunchGrid(*config, reinterpret_cast<const void*>(kernel), pointers,
                                    [kernel, values]() { std::apply(kernel, values); });
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Parameters...), int block_size,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), block_size,
                                                       shared_bytes);
}
template <class Value>
cudaError_t cudaMalloc(Value** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class Value>
cudaError_t cudaMallocHost(Value** pointer, size_t bytes, unsigned flags = cudaHostAllocDefault) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class Value>
cudaError_t cudaHostAlloc(Value** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
