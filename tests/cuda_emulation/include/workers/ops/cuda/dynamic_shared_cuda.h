// The emulation's twin of workers/ops/cuda/dynamic_shared_cuda.h.
#pragma once

#include <cuda_runtime.h>

namespace switchyard::ops::cuda {

template <class Elem>
inline Elem* DynamicShared() {
  return static_cast<Elem*>(cuda_emulation::DynamicSharedBase());
}

}  // namespace switchyard::ops::cuda
