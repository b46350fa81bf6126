// CUDA's qualifiers and built-in variables.  A `__shared__` array is storage of the OS thread that runs the block: all
// threads of a block are fibers of that OS thread, and blocks run one after the other on it.
#pragma once

#include "cuda_emulation/types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ static thread_local
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))

inline constexpr int warpSize = 32;

// Set by the emulation before a thread runs on.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
