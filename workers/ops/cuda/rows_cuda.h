// Shared by the kernels that walk rows: packs (as many elements as one 16-byte access takes), arithmetic that rounds
// where the CPU's kernels round, and the launch that gives every thread one pack of a row.
//
// Only for *_cuda.cu.  Packs never read or write beyond the row: the last, shorter one is copied element by element,
// and so are all if a pointer or stride is no multiple of a pack (Aligned, decided once for a call).  Neither the
// thread that computes an element nor the bits depend on that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

// nvcc fuses a * b + c; these stay separate operations, as on the CPU.
__device__ inline float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double Add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float Mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double Mul(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }

__device__ inline float InverseRoot(float x) { return 1.0f / sqrtf(x); }
__device__ inline double InverseRoot(double x) { return 1.0 / sqrt(x); }

// The exp of the CPU's kernels (simd.h), with the same bits as those with fma.
__device__ inline float Exp(float x) {
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = __fmaf_rn(x, 1.44269504088896341f, magic);
  const float n = __fadd_rn(shifted, -magic);
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float q = 1.9875691500e-4f;
  q = __fmaf_rn(q, r, 1.3981999507e-3f);
  q = __fmaf_rn(q, r, 8.3334519073e-3f);
  q = __fmaf_rn(q, r, 4.1665795894e-2f);
  q = __fmaf_rn(q, r, 1.6666665459e-1f);
  q = __fmaf_rn(q, r, 5.0000001201e-1f);
  const float p = __fadd_rn(__fmaf_rn(q, __fmul_rn(r, r), r), 1.0f);
  float y = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
  y = x < -87.336544f ? 0.0f : y;
  y = x > 88.7228f ? __uint_as_float(0x7f800000u) : y;
  return x != x ? x : y;
}
__device__ inline double Exp(double x) { return exp(x); }

template <class Elem, int kCount>
struct alignas(sizeof(Elem) * kCount < 16 ? sizeof(Elem) * kCount : 16) Pack {
  Elem at[kCount];
};
// Elements of a pack: those of 16 bytes of the widest type involved.
template <class... Elems>
inline constexpr int kPackOf = 16 / static_cast<int>(std::max({sizeof(Elems)...}));

// The word that a whole pack is stored as: nvcc does not always merge several neighbouring stores.
template <int kBytes>
struct PackWord;
template <>
struct PackWord<16> {
  using Type = uint4;
};
template <>
struct PackWord<8> {
  using Type = uint2;
};
template <>
struct PackWord<4> {
  using Type = unsigned;
};

// The pack at `from`, of a row that has `left` more elements; what is beyond them is zero.
template <int kCount, class Elem>
__device__ inline Pack<Elem, kCount> LoadPack(const Elem* from, int64_t left, bool aligned) {
  if (aligned && left >= kCount) return *reinterpret_cast<const Pack<Elem, kCount>*>(from);
  Pack<Elem, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.at[i] = i < left ? from[i] : Elem(0.0f);
  return pack;
}
template <int kCount, class Elem>
__device__ inline void StorePack(const Pack<Elem, kCount>& pack, Elem* to, int64_t left, bool aligned) {
  if (aligned && left >= kCount) {
    typename PackWord<sizeof(pack)>::Type word;
    memcpy(&word, &pack, sizeof(pack));
    StoreGlobal(to, word);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < left) to[i] = pack.at[i];
  }
}

// Whether every row at `base`, stride elements apart, begins at a multiple of a pack.
template <int kCount, class Elem>
inline bool Aligned(const Elem* base, int64_t stride) {
  return reinterpret_cast<uintptr_t>(base) % alignof(Pack<Elem, kCount>) == 0 && stride % kCount == 0;
}

// Whether rows at these addresses, of these lengths and strides in bytes (or-ed together), are whole words of 16 bytes.
template <class... Pointers>
bool InWordsOf16(int64_t bytes, Pointers... pointers) {
  return ((static_cast<uint64_t>(bytes) | ... | reinterpret_cast<uintptr_t>(pointers))) % 16 == 0;
}

// Calls fn.template operator()<Elem>() for DType's first four values: fp32, fp64, bf16, fp16.
template <class Fn>
int VisitElem(uint8_t dtype, const Fn& fn) {
  switch (dtype) {
    case 0:
      return fn.template operator()<float>();
    case 1:
      return fn.template operator()<double>();
    case 2:
      return fn.template operator()<__nv_bfloat16>();
    default:
      return fn.template operator()<__half>();
  }
}

inline constexpr int kRowThreads = 256;

template <class Op>
__global__ void __launch_bounds__(kRowThreads) RowsKernel(const Op op, int64_t rows, int64_t packs) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) op(row, pack);
}

// Enqueues op(row, pack) for all rows and packs.  Op is a struct of plain members with a __device__ operator() const.
template <class Op>
int LaunchRows(const CudaCall& call, const Op& op, int64_t rows, int64_t packs) {
  if (rows <= 0 || packs <= 0) return 0;
  // Few rows: smaller blocks, so that more multiprocessors take part.
  int64_t threads = kRowThreads;
  while (threads > 64 && (packs + threads - 1) / threads * rows < 2 * call.num_sms) threads /= 2;
  threads = std::min(threads, (packs + 31) / 32 * 32);
  const dim3 grid = Grid((packs + threads - 1) / threads, std::min<int64_t>(rows, 65535));
  return Launch(ConfigOf(call, grid, Grid(threads)), &RowsKernel<Op>, op, rows, packs);
}

}  // namespace switchyard::ops::cuda
