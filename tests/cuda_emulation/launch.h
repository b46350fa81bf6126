// A grid to run: what cudaLaunchKernelEx hands over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda_emulation/types.h"

namespace cuda_emulation {

struct Grid {
  dim3 grid, block;
  size_t shared_bytes = 0;            // dynamic
  const void* kernel = nullptr;       // for messages
  bool dependent = false;             // launched with programmatic stream serialization
  std::function<void()> call_kernel;  // one thread of it
};

// Runs all blocks on this OS thread.  Returns 0 or the cudaError_t of a fault; aborts on a deadlock.
int RunGrid(const Grid& grid);

// "switchyard::(anonymous namespace)::RmsNormKernel<float>(...)", or the address.
std::string KernelName(const void* kernel);

}  // namespace cuda_emulation
