// From sums to y: bias, accumulation, SwiGLU, rounding, and 16 columns of a token side by side.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"

namespace switchyard::ops::cuda {

// silu(gate) * up, also at both ends: the exponential of a large negative gate is infinite, and the quotient -0.
__device__ inline float SiluTimes(float gate, float up) { return gate / (1 + expf(-gate)) * up; }
__device__ inline double SiluTimes(double gate, double up) { return gate / (1 + exp(-gate)) * up; }

// Within a few units of the last place, and 0 where less than 2^-119 * up is right: without the branches, and their
// registers, of an exact division.
__device__ inline float FastSiluTimes(float gate, float up) { return __fdividef(gate, 1 + expf(-gate)) * up; }

__device__ inline float ExactExp(float x) { return expf(x); }
__device__ inline double ExactExp(double x) { return exp(x); }

// What the activation makes of a gate's sum and its up's: SwiGLU, or with the bounds of GluClamp.
template <class Value>
__device__ __forceinline__ Value Glu(const GemmProblem& p, Value gate, Value up) {
  if (p.glu_limit == 0) return SiluTimes(gate, up);
  const Value limit = static_cast<Value>(p.glu_limit), alpha = static_cast<Value>(p.glu_alpha);
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate / (1 + ExactExp(-alpha * gate)) * (up + 1);
}

// That of an item's outputs [N] or null: the weight's own, or the product's.
__device__ __forceinline__ const void* BiasOf(const GemmProblem& p, const void* weight) {
  return p.own_bias > 0 ? static_cast<const char*>(weight) + p.own_bias : p.bias;
}
template <class Elem>
__device__ __forceinline__ float BiasAt(const void* bias, int32_t column) {
  return bias == nullptr ? 0 : Widen(static_cast<const Elem*>(bias)[column]);
}

struct YPlace {
  int32_t row, end_row, column;
  const void* bias;
};

// Scratch of a warp and block: 8 tokens of 16 columns, and 4 so that the threads of a fragment write to different
// banks.
inline constexpr int kScratchStride = 20;
inline constexpr int kStoreScratchBytes = 8 * kScratchStride * 4;

// kValues neighbouring columns of one row: + bias, + y, converted to Out.
template <class Elem, class Out, int kValues>
__device__ void StoreValues(const GemmProblem& p, const void* bias, int32_t row, int32_t column,
                            float (&value)[kValues]) {
  struct alignas(sizeof(Out) * kValues) Pack {
    Out v[kValues];
  };
  Out* y = static_cast<Out*>(p.y) + row * p.y_stride + column;
  if (bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (column + i < p.columns) value[i] += BiasAt<Elem>(bias, column + i);
    }
  }
  if (column + kValues <= p.columns && reinterpret_cast<uintptr_t>(y) % sizeof(Pack) == 0) {
    Pack pack;
    if (p.accumulate) pack = *reinterpret_cast<const Pack*>(y);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      pack.v[i] = Narrow<Out>(p.accumulate ? Widen(pack.v[i]) + value[i] : value[i]);
    }
    *reinterpret_cast<Pack*>(y) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (column + i < p.columns) y[i] = Narrow<Out>(p.accumulate ? Widen(y[i]) + value[i] : value[i]);
  }
}

// By a whole warp: the 16 x 8 sums of one mma (columns x tokens; gated: 8 gates above their 8 ups).
template <class Elem>
__device__ void StoreMma(const GemmProblem& p, const float (&sum)[4], const YPlace& at, float* scratch) {
  const int lane = threadIdx.x % 32, g = lane / 4, token = lane % 4 * 2;
  const int32_t row = at.row + lane / 4;
  const bool in_rows = row < at.end_row;
  if (p.gated) {
    const bool in_columns = at.column + g < p.columns;
    const float gate = in_columns ? BiasAt<Elem>(at.bias, at.column + g) : 0;
    const float up = in_columns ? BiasAt<Elem>(at.bias, p.columns + at.column + g) : 0;
    scratch[token * kScratchStride + g] = Glu(p, sum[0] + gate, sum[2] + up);
    scratch[(token + 1) * kScratchStride + g] = Glu(p, sum[1] + gate, sum[3] + up);
    __syncwarp();
    const int column = lane % 4 * 2;
    float value[2] = {scratch[g * kScratchStride + column], scratch[g * kScratchStride + column + 1]};
    if (in_rows && p.y_dtype == p.dtype) StoreValues<Elem, Elem>(p, nullptr, row, at.column + column, value);
    if (in_rows && p.y_dtype != p.dtype) StoreValues<Elem, float>(p, nullptr, row, at.column + column, value);
  } else {
    scratch[token * kScratchStride + g] = sum[0];
    scratch[(token + 1) * kScratchStride + g] = sum[1];
    scratch[token * kScratchStride + g + 8] = sum[2];
    scratch[(token + 1) * kScratchStride + g + 8] = sum[3];
    __syncwarp();
    const int column = lane % 4 * 4;
    const float4 four = *reinterpret_cast<const float4*>(scratch + g * kScratchStride + column);
    float value[4] = {four.x, four.y, four.z, four.w};
    if (in_rows && p.y_dtype == p.dtype) StoreValues<Elem, Elem>(p, at.bias, row, at.column + column, value);
    if (in_rows && p.y_dtype != p.dtype) StoreValues<Elem, float>(p, at.bias, row, at.column + column, value);
  }
  __syncwarp();  // the scratch is free again
}

// The same in two halves, of blocks of 8 tokens that lie in the scratch one after another: to it, each block by a whole
// warp ...
__device__ __forceinline__ void PutBlock(const float (&sum)[4], float* scratch) {
  const int lane = threadIdx.x % 32;
  float* to = scratch + lane % 4 * 2 * kScratchStride + lane / 4;
  to[0] = sum[0], to[kScratchStride] = sum[1];
  to[8] = sum[2], to[kScratchStride + 8] = sum[3];
}
// ... and from it; `tokens`: of all these blocks, at.row being the first one's.  A loop, which is much code with all
// its cases, so it should be there once.  Gated, it has no biases or bounds.
template <class Elem>
__device__ __forceinline__ void StoreBlocks(const GemmProblem& p, const YPlace& at, int tokens, const float* scratch) {
  const int lane = threadIdx.x % 32;
  const int lanes = p.gated ? 2 : 4;  // a token
  const int32_t column = at.column + lane % lanes * 4, end_row = min(at.end_row, at.row + tokens);
  const float* from = scratch + lane / lanes * kScratchStride + lane % lanes * 4;
#pragma unroll 1
  for (int32_t row = at.row + lane / lanes; row < end_row; row += 32 / lanes) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    float value[4] = {four.x, four.y, four.z, four.w};
    if (p.gated) {
      const float4 up = *reinterpret_cast<const float4*>(from + 8);
      value[0] = FastSiluTimes(value[0], up.x), value[1] = FastSiluTimes(value[1], up.y);
      value[2] = FastSiluTimes(value[2], up.z), value[3] = FastSiluTimes(value[3], up.w);
    }
    if (p.y_dtype == p.dtype) {
      StoreValues<Elem, Elem>(p, at.bias, row, column, value);
    } else {
      StoreValues<Elem, float>(p, at.bias, row, column, value);
    }
    from += 32 / lanes * kScratchStride;
  }
}

}  // namespace switchyard::ops::cuda
