// One warp's share of attention on tensor cores: 16 query rows against a tile of keys in shared memory.
//   S = Q Kᵀ;   m' = max(m, S);   P = 2^((S - m') · scale · log2 e), rounded to Elem;   l = l · decay + Σ P;
//   O = O · decay + P V
//
// For the prefill and the decode kernel of 16-bit attention, so that they do the same arithmetic.  A row's numbers
// depend on its own query and its tiles, not on its place among the 16 rows; a tile that it does not see changes none
// of them. Fragments are those of mma.m16n8k16: with g = lane / 4 and t = lane % 4, a lane holds rows g and g + 8 and,
// of each 8 columns, columns 2t and 2t + 1.  Rows in shared memory are kDim elements long; their 16-byte chunks are
// permuted by the row's number (Swizzled), so that the 8 rows of an ldmatrix fall into different banks.  kDim is D
// padded to 64, 128 or 256; pads are zero.  Does not do: loads (cp.async is up to the kernels), synchronization of more
// than the warp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

inline constexpr int kMmaRows = 16;  // rows of a warp
inline constexpr int kChunk = 8;     // 16-bit elements in 16 bytes
inline constexpr double kLog2E = 1.4426950408889634;

// Calls fn.template operator()<Elem, kDim>() for the call's dtype (bf16 or fp16) and padded D.
template <class Fn>
int VisitTile(const CudaAttentionArgs& args, const Fn& fn) {
  const auto visit = [&]<class Elem>() -> int {
    if (args.head_dim <= 64) return fn.template operator()<Elem, 64>();
    if (args.head_dim <= 128) return fn.template operator()<Elem, 128>();
    return fn.template operator()<Elem, 256>();
  };
  return args.dtype == kCudaBf16 ? visit.template operator()<__nv_bfloat16>() : visit.template operator()<__half>();
}

// Where chunk `chunk` of row `row` begins, in elements.
template <int kDim>
__device__ __forceinline__ int Swizzled(int row, int chunk) {
  return row * kDim + (chunk ^ (row & 7)) * kChunk;
}

// The same within a row that has number `lane` modulo 8: the rows that a lane names to ldmatrix.
__device__ __forceinline__ int LaneChunk(int lane, int chunk) { return (chunk ^ (lane & 7)) * kChunk; }

// Two floats rounded to Elem, the first in the low half; and back.
template <class Elem>
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<Elem, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, 4);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}
template <class Elem>
__device__ __forceinline__ float2 UnpackPair(uint32_t bits) {
  if constexpr (std::is_same_v<Elem, __half>) {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    return __half22float2(pair);
  } else {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
}

// The partial results of 16 rows.  Index 0 of max and sum is row g, index 1 row g + 8.
template <int kDim>
struct RowState {
  float out[kDim / 8][4];  // not yet divided by the sum
  float max[2];            // of the scores before the scale; -Inf: no key so far
  float sum[2];            // over this lane's columns alone: the row's is that of 4 lanes (RowSum)
};

template <int kDim>
__device__ __forceinline__ void Clear(RowState<kDim>& state) {
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) state.out[i][j] = 0.0f;
  }
  state.max[0] = state.max[1] = -INFINITY;
  state.sum[0] = state.sum[1] = 0.0f;
}

// A-fragment of 16 rows of shared memory from `row` on (a multiple of 8), columns [16 * step, 16 * step + 16).
template <class Elem, int kDim>
__device__ __forceinline__ void LoadRows(const Elem* rows, int row, int step, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  LdMatrixX4(a, rows + (row + lane % 16) * kDim + LaneChunk(lane, 2 * step + lane / 16));
}

// scores[n] = Q · keys [8n, 8n + 8).  query(step, a) gives Q's A-fragment of columns [16 * step, ...).
template <class Elem, int kDim, int kKeys, class Query>
__device__ __forceinline__ void Scores(const Query& query, const Elem* keys,  // [kKeys, kDim] swizzled
                                       float (&scores)[kKeys / 8][4]) {
  const int lane = threadIdx.x % 32;
  const int row = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[n][j] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4];
    query(step, a);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      LdMatrixX4(b, keys + (16 * n + row) * kDim + LaneChunk(lane, 2 * step + chunk));
      MmaM16N8K16<Elem>(scores[2 * n], a, {b[0], b[1]});
      MmaM16N8K16<Elem>(scores[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

// Hides the keys that row i of the lane's two does not see; key 0 of the tile has position `tile`.
template <int kColumns>
__device__ __forceinline__ void HideKeys(int tile, const int (&end)[2], int window, float (&scores)[kColumns][4]) {
  const int first = tile + static_cast<int>(threadIdx.x % 4 * 2), last[2] = {end[0] - 1 - first, end[1] - 1 - first};
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // How many keys before the last one that it sees: negative ones are none of its window's, either.
      const unsigned before = static_cast<unsigned>(last[j / 2] - (8 * n + j % 2));
      if (before >= static_cast<unsigned>(window)) scores[n][j] = -INFINITY;
    }
  }
}

// Scores → probabilities as A-fragments of 16 keys each; the rows' maxima and sums.  decay: by what the rows' outputs
// so far are to be multiplied (Rescale).  scale_log2: scale·log2 e, positive.  kSumRounded: the sums are of the weights
// as v is multiplied by them, and not as they were before; it takes two more instructions a weight.
template <class Elem, int kDim, int kKeys, bool kSumRounded>
__device__ __forceinline__ void Weigh(const float (&scores)[kKeys / 8][4], float scale_log2, RowState<kDim>& state,
                                      uint32_t (&p)[kKeys / 16][4], float (&decay)[2]) {
  float base[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float max = state.max[i];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) max = fmaxf(max, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    // No key so far: any finite number will do, as 2^-Inf is 0.
    base[i] = max == -INFINITY ? 0.0f : max * scale_log2;
    // Exactly 1 where the maximum stays: a tile that a row does not see must change nothing.
    decay[i] = state.max[i] == max ? 1.0f : Exp2((state.max[i] - max) * scale_log2);
    state.max[i] = max;
    state.sum[i] *= decay[i];
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 weights = make_float2(Exp2(fmaf(scores[n][2 * i], scale_log2, -base[i])),
                                   Exp2(fmaf(scores[n][2 * i + 1], scale_log2, -base[i])));
      const uint32_t pair = PackPair<Elem>(weights.x, weights.y);
      p[n / 2][n % 2 * 2 + i] = pair;
      if constexpr (kSumRounded) weights = UnpackPair<Elem>(pair);
      state.sum[i] += weights.x + weights.y;
    }
  }
}

template <int kDim>
__device__ __forceinline__ void Rescale(const float (&decay)[2], RowState<kDim>& state) {
  // Skips a multiplication by 1, once a row has seen its largest scores: the bits are the same.
  if (!__any_sync(kAllLanes, decay[0] != 1.0f || decay[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) state.out[n][j] *= decay[j / 2];
  }
}

// Both.
template <class Elem, int kDim, int kKeys>
__device__ __forceinline__ void Soften(const float (&scores)[kKeys / 8][4], float scale_log2, RowState<kDim>& state,
                                       uint32_t (&p)[kKeys / 16][4]) {
  float decay[2];
  Weigh<Elem, kDim, kKeys, /*kSumRounded=*/true>(scores, scale_log2, state, p, decay);
  Rescale(decay, state);
}

// O += P V.
template <class Elem, int kDim, int kKeys>
__device__ __forceinline__ void AddValues(const uint32_t (&p)[kKeys / 16][4],
                                          const Elem* values,  // [kKeys, kDim] swizzled
                                          RowState<kDim>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      LdMatrixX4Trans(b, values + (16 * step + lane % 16) * kDim + LaneChunk(lane, 2 * n + lane / 16));
      MmaM16N8K16<Elem>(state.out[2 * n], p[step], {b[0], b[1]});
      MmaM16N8K16<Elem>(state.out[2 * n + 1], p[step], {b[2], b[3]});
    }
  }
}

// The sum of row g (i = 0) or g + 8 (i = 1), in every lane that holds the row.
template <int kDim>
__device__ __forceinline__ float RowSum(const RowState<kDim>& state, int i) {
  float sum = state.sum[i];
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  return sum;
}

// What a row's outputs are to be divided by: its sum, and the term of its head's sink, a key that all rows of the head
// see and whose value is zeros.  max: of scores · scale · log2 e, over all of the row's keys.  Called once a row, with
// the sums of all its splits: so a row counts its sink once.  Beyond the range of floats the term is Inf and the
// outputs are 0, as they should be.
__device__ __forceinline__ float WithSink(const CudaAttentionArgs& a, int head, float max, float sum) {
  if (a.sinks == nullptr) return sum;
  const float sink = static_cast<const float*>(a.sinks)[head];
  return sum + Exp2(fmaf(sink, static_cast<float>(kLog2E), -max));  // one rounding in every kernel: the same bits
}

// Row i's maximum as Join takes it.  Rounded here: no compiler may fuse it with a difference where it need not store
// it.
template <int kDim>
__device__ __forceinline__ float ScaledMax(const RowState<kDim>& state, int i, float scale_log2) {
  return __fmul_rn(state.max[i], scale_log2);
}

// How the sums of a next part of a row's keys join those of the parts before it.  Maxima are of scores · scale · log2
// e; -Inf: no key seen, all sums 0.
class Join {
 public:
  __device__ __forceinline__ Join(float max, float next_max)
      : max_(fmaxf(max, next_max)), keep_(WeightOf(max)), add_(WeightOf(next_max)) {}

  __device__ __forceinline__ float max() const { return max_; }
  __device__ __forceinline__ float operator()(float sum, float next) const { return fmaf(add_, next, keep_ * sum); }

 private:
  // Exactly 1 for the larger: a part of which a row sees nothing must change nothing.
  __device__ __forceinline__ float WeightOf(float max) const { return max == max_ ? 1.0f : Exp2(max - max_); }

  float max_, keep_, add_;
};

}  // namespace switchyard::ops::cuda
