// The block's dynamic shared memory.  A file of its own: the CUDA emulation of the tests has another of the same name.
#pragma once

#include <cuda_runtime.h>

namespace switchyard::ops::cuda {

// Its begin, aligned to 128 bytes; LaunchConfig::shared_bytes says how many there are.  Uninitialized.
template <class Elem>
__device__ __forceinline__ Elem* DynamicShared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  return reinterpret_cast<Elem*>(dynamic_shared);
}

}  // namespace switchyard::ops::cuda
