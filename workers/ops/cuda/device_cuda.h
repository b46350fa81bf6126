// Basics of kernels: dynamic shared memory, element types and their conversions, sums in a fixed order.  Device code
// only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/dynamic_shared_cuda.h"

namespace switchyard::ops::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kMaxWarps = 32;  // of a block

template <class Elem>
struct AccOf {
  using Type = float;
};
template <>
struct AccOf<double> {
  using Type = double;
};
// AccDType's type: what sums and the residual stream of an element type are kept in.
template <class Elem>
using AccT = typename AccOf<Elem>::Type;

__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ double Widen(double x) { return x; }
__device__ __forceinline__ float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float Widen(__half x) { return __half2float(x); }

// To 16 bits: to the nearest, ties to even.
template <class Elem>
__device__ __forceinline__ Elem Narrow(AccT<Elem> x);
template <>
__device__ __forceinline__ float Narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double Narrow<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 Narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half Narrow<__half>(float x) {
  return __float2half_rn(x);
}

// Sums whose order of additions depends on nothing but the number of threads.
// Every lane gets the result.  REQUIRES: all 32 lanes call it.
template <class Value>
__device__ __forceinline__ Value WarpSum(Value value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = value + __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Every thread gets the result.  `scratch` is shared memory of kMaxWarps values, free again when the call returns.
// REQUIRES: all threads of a one-dimensional block call it; their number is a multiple of 32.
template <class Value>
__device__ __forceinline__ Value BlockSum(Value value, Value* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = WarpSum(value);
  if (num_warps == 1) return value;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = WarpSum(lane < num_warps ? scratch[lane] : Value(0));
  __syncthreads();
  return value;
}

}  // namespace switchyard::ops::cuda
