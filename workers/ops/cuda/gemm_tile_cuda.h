// One tile of a matrix product on the tensor cores: mma.sync m16n8k16 of bf16 or fp16 with fp32 sums; and what the
// tiles of gemm_wgmma_cuda.cu share with these, shapes and loads.
//
// The weights are the M side: an mma takes 16 weight rows and 8 tokens, so a decode of a few tokens wastes little, and
// every shape of the tile computes an output in the same way.  Bits: an output's sum begins at +0 and takes k in steps
// of 16, ascending, each one mma whose row of weights, column of tokens and sum are this output's own; steps past k
// multiply zeros.  So with one chain (warps_k == 1) they depend on neither tile nor place nor the other rows.  With
// warps_k > 1, warp w takes every warps_k-th step, and the partial sums are added in the order of w.
//
// Gated: rows 0-7 of 16 are gate columns c..c+7 and rows 8-15 the same columns of up, so that the thread that holds a
// gate's sum holds its up, too: silu(gate) * up from fp32 sums, rounded once.
//
// Bytes in flight.  A GPU that moves 4.3 TB/s with a latency of 0.7 to 0.8 us under load must have 4.3e12 * 0.75e-6 =
// 3.2 MB on the way (Little's law), 24 KB on each of 132 SMs; more where fewer CTAs have work than could run. With
// `stages` buffers, stages - 1 are on the way.  Of weights, per CTA and per SM (ctas_per_sm):
//   stream64x8    4 * 16 KB = 64 KB, 128 KB     192 tiles (8 experts of 1536 rows): 12 MB on the way
//   stream64x16   4 * 16 KB = 64 KB, 128 KB
//   stream64x32   3 * 16 KB = 48 KB,  96 KB
//   stream16x8    7 *  4 KB = 28 KB, 112 KB     128 tiles (2048 rows, one token): 3.5 MB
//   stream16x8_split4  4 * 8 KB = 32 KB, 96 KB  128 tiles: 4 MB.  Its four chains matter: one chain of k / 16 mma at
//                 ~33 clocks each takes 4.8 us for k = 4096, longer than the 3.9 us that 2048 such rows take to arrive.
// A step takes 256 bytes of each weight row (stream16x8_split4: 512), so that memory is read in long pieces.
// Shared memory: rows of `depth` elements, 16-byte chunk c of row r kept at c ^ (r % 8): the eight rows that ldmatrix
// reads at one k lie in eight different groups of banks, and so do the chunks that eight lanes write.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_store_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

// What follows from an entry of kCudaGemmTiles.
template <int kTile>
struct TileShape {
  static constexpr CudaGemmTile kT = kCudaGemmTiles[kTile];
  static constexpr int kColumns = kT.columns, kRows = kT.rows, kDepth = kT.depth, kStages = kT.stages;
  static constexpr int kWarpsN = kT.warps_n, kWarpsT = kT.warps_t, kWarpsK = kT.warps_k;
  static constexpr int kWarps = kWarpsN * kWarpsT * kWarpsK;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kChunks = kDepth / 8;  // of 16 bytes, a row
  static constexpr int kRowStep = kThreads / kChunks;
  static constexpr int kWeightLoads = kColumns / kRowStep;  // of 16 bytes, a thread and step
  static constexpr int kXLoads = (kRows + kRowStep - 1) / kRowStep;
  static constexpr int kMmaColumns = kColumns / 16 / kWarpsN;  // a warp's, in units of 16
  static constexpr int kMmaRows = kRows / 8 / kWarpsT;         // in units of 8
  static constexpr int kStageBytes = (kColumns + kRows) * kDepth * 2;
  static constexpr int kStoreBytes = kT.store_blocks * kStoreScratchBytes;  // a warp's
  static constexpr int kPartialBytes = (kWarpsK - 1) * kColumns * kRows * 4;
  static constexpr int kFixedBytes = kStages * kStageBytes + kWarps * kStoreBytes + kPartialBytes;
  static_assert(kChunks % 8 == 0 && kThreads % kChunks == 0 && kColumns % kRowStep == 0);
  static_assert(kMmaColumns >= 1 && kMmaRows >= 1 && (kMmaRows == 1 || kMmaRows % 2 == 0));
  static_assert(kWarpsK == 1 || (kWarpsN == 1 && kWarpsT == 1 && kDepth / 16 % kWarpsK == 0));

  // An SM of compute 9.0 has 228 KB, of which each CTA costs one more.
  static_assert((kFixedBytes + CudaGemmPlanBytes(256) + 1024) * kT.ctas_per_sm <= 228 * 1024);

  // Of wgmma, stages begin at multiples of 1024; dynamic shared memory, at multiples of 128.
  static constexpr int kAlignBytes = kT.wgmma ? 1024 - 128 : 0;
  static_assert(CudaGemmSharedBytes(kT, 256) == kAlignBytes + kFixedBytes + CudaGemmPlanBytes(256));
  // Where chunk c of row r is, in bytes.
  __device__ static constexpr int At(int row, int chunk) { return (row * kChunks + (chunk ^ (row & 7))) * 16; }
};

// Calls fn.template operator()<kTile>() for this entry of kCudaGemmTiles.
template <int kTile = 0, class Fn>
int VisitGemmTile(int tile, const Fn& fn) {
  if constexpr (kTile == kNumCudaGemmTiles) {
    return cudaErrorInvalidValue;
  } else {
    return tile == kTile ? fn.template operator()<kTile>() : VisitGemmTile<kTile + 1>(tile, fn);
  }
}

// Moves the tiles of one item from memory to a stage.
template <class Elem, class Shape>
class TileLoader {
 public:
  // Whole groups of 16 rows apart, a thread's columns are evenly apart, gated or not: the first one will do.
  static constexpr bool kEvenSteps = Shape::kRowStep % 16 == 0;
  static constexpr int kColumnsKept = kEvenSteps ? 1 : Shape::kWeightLoads;
  // Then one address leads to the next, too: a product each is most of what wgmma's warps do.  The other tiles lack the
  // registers for it.
  static constexpr bool kWalk = kEvenSteps && Shape::kT.wgmma;

  __device__ explicit TileLoader(const GemmProblem& p)
      : p_(p), chunk_(threadIdx.x % Shape::kChunks), row_(threadIdx.x / Shape::kChunks) {}

  __device__ void Aim(const GemmItem& item) {
    weight_ = static_cast<const Elem*>(item.weight);
    const int32_t first = item.column_tile * (p_.gated ? Shape::kColumns / 2 : Shape::kColumns);
#pragma unroll
    for (int i = 0; i < kColumnsKept; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      column_[i] = first + (p_.gated ? row / 16 * 8 + row % 8 : row);
    }
    if (kWalk && column_[0] < p_.columns) weight_ += WeightRow(row_, column_[0]) * p_.w_stride;
#pragma unroll
    for (int i = 0; i < Shape::kXLoads; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      const int32_t y_row = item.first_row + row;
      x_row_[i] = -1;
      if (row < Shape::kRows && y_row < item.end_row) x_row_[i] = p_.x_rows != nullptr ? p_.x_rows[y_row] : y_row;
    }
  }

  // Elements [k, k + depth) of every row; zeros where there are none.
  __device__ void Load(char* stage, int32_t k) const {
    const int32_t at = k + chunk_ * 8;
    const bool in_k = at < static_cast<int32_t>(p_.k);  // whole chunks: k is a multiple of 8
    LoadWeights(stage, at, in_k);
    char* x_stage = stage + Shape::kColumns * Shape::kDepth * 2;
    const auto from_aligned = [](char* to, const Elem* x, bool valid) { CpAsync16(to, x, valid); };
    const auto from_anywhere = [](char* to, const Elem* x, bool valid) { CopyElements(to, valid ? x : nullptr); };
    if constexpr (Shape::kT.wgmma) {  // asked once: fewer instructions, more registers, which the others lack
      if (p_.x_aligned) {
        EachX(x_stage, at, in_k, from_aligned);
      } else {
        EachX(x_stage, at, in_k, from_anywhere);
      }
    } else {
      EachX(x_stage, at, in_k, [&](char* to, const Elem* x, bool valid) {
        if (p_.x_aligned) {
          from_aligned(to, x, valid);
        } else {
          from_anywhere(to, x, valid);
        }
      });
    }
  }

 private:
  __device__ void LoadWeights(char* stage, int32_t at, bool in_k) const {
    const int32_t column_step = p_.gated ? Shape::kRowStep / 2 : Shape::kRowStep;
    const Elem* walk = weight_ + at;
#pragma unroll
    for (int i = 0; i < Shape::kWeightLoads; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      const int32_t column = kEvenSteps ? column_[0] + i * column_step : column_[kEvenSteps ? 0 : i];
      const bool valid = in_k && column < p_.columns;
      const Elem* from = kWalk ? walk : weight_ + WeightRow(row, column) * p_.w_stride + at;
      CpAsync16(stage + Place(i), valid ? from : weight_, valid);
      if constexpr (kWalk) walk += column_step * p_.w_stride;
    }
  }

  // copy(to, from, whether there is something) for each 16 bytes of this thread.
  template <class Copy>
  __device__ void EachX(char* x_stage, int32_t at, bool in_k, Copy copy) const {
#pragma unroll
    for (int i = 0; i < Shape::kXLoads; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      if (Shape::kRows % Shape::kRowStep != 0 && row >= Shape::kRows) continue;
      const bool valid = in_k && x_row_[i] >= 0;
      copy(x_stage + Place(i), static_cast<const Elem*>(p_.x) + (valid ? x_row_[i] * p_.x_stride + at : 0), valid);
    }
  }

  // Where this thread's i-th chunk is.  The compiler does not see that whole groups of 8 rows apart these lie evenly
  // apart: it would keep a register for each.
  __device__ int Place(int i) const {
    if constexpr (Shape::kRowStep % 8 != 0) return Shape::At(row_ + i * Shape::kRowStep, chunk_);
    return Shape::At(row_, chunk_) + i * Shape::kRowStep * Shape::kChunks * 16;
  }

  // Of a tile's row, which is for a column of y.
  __device__ int32_t WeightRow(int row, int32_t column) const {
    return column + (p_.gated && row % 16 >= 8 ? p_.columns : 0);
  }

  // 16 bytes from anywhere; zeros from null.
  __device__ static void CopyElements(char* to, const Elem* from) {
    uint32_t words[4] = {};
    if (from != nullptr) {
      const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  const GemmProblem& p_;
  const int chunk_, row_;
  const Elem* weight_ = nullptr;   // the expert's; kWalk: this thread's first row of it, if any
  int32_t column_[kColumnsKept];   // of y, that the rows of weights are for
  int32_t x_row_[Shape::kXLoads];  // -1 = none
};

// A warp's sums of one item.
template <class Elem, class Shape>
class TileSums {
 public:
  static constexpr int kI = Shape::kMmaColumns, kJ = Shape::kMmaRows;

  __device__ explicit TileSums(const GemmProblem& p)
      : p_(p),
        lane_(threadIdx.x % 32),
        warp_n_(threadIdx.x / 32 % Shape::kWarpsN),
        warp_t_(threadIdx.x / 32 / Shape::kWarpsN % Shape::kWarpsT),
        warp_k_(threadIdx.x / 32 / (Shape::kWarpsN * Shape::kWarpsT)) {}

  // All zero; `item` is what Multiply() adds up from now on.
  __device__ void Begin(const GemmItem& item) {
    idle_ = item.first_row + warp_t_ * kJ * 8 >= item.end_row;
#pragma unroll
    for (int i = 0; i < kI; ++i) {
#pragma unroll
      for (int j = 0; j < kJ; ++j) sum_[i][j][0] = sum_[i][j][1] = sum_[i][j][2] = sum_[i][j][3] = 0;
    }
  }

  // Adds a stage.  A warp whose tokens lie past the expert's last row leaves the tensor cores to the others.
  __device__ void Multiply(const char* stage) {
    if (idle_) return;
    const char* x_stage = stage + Shape::kColumns * Shape::kDepth * 2;
#pragma unroll
    for (int step = 0; step < Shape::kDepth / 16 / Shape::kWarpsK; ++step) {
      const int chunk = (step * Shape::kWarpsK + warp_k_) * 2;
      uint32_t x[kJ][2];
      LoadX(x_stage, chunk, x);
#pragma unroll
      for (int i = 0; i < kI; ++i) {
        uint32_t w[4];
        LdMatrixX4(w, stage + Shape::At((warp_n_ * kI + i) * 16 + lane_ % 16, chunk + lane_ / 16));
#pragma unroll
        for (int j = 0; j < kJ; ++j) MmaM16N8K16<Elem>(sum_[i][j], w, x[j]);
      }
    }
  }

  // warps_k > 1: the sums of all warps in those of the first.  A barrier lies between this and the next call.
  __device__ void AddPartials(float* partial) {
    if constexpr (Shape::kWarpsK > 1) {
      constexpr int kFloats = kI * kJ * 4 * 32;
      Each([&](float& sum, int at) {
        if (warp_k_ > 0) partial[(warp_k_ - 1) * kFloats + at] = sum;
      });
      __syncthreads();
      Each([&](float& sum, int at) {
        if (warp_k_ > 0) return;
#pragma unroll
        for (int w = 0; w < Shape::kWarpsK - 1; ++w) sum += partial[w * kFloats + at];
      });
    }
  }

  // To y, through this warp's scratch.
  __device__ void Store(const GemmItem& item, float* scratch) {
    if (warp_k_ > 0) return;
    const int32_t first_column = item.column_tile * (p_.gated ? Shape::kColumns / 2 : Shape::kColumns);
    const void* const bias = BiasOf(p_, item.weight);
#pragma unroll
    for (int i = 0; i < kI; ++i) {
      const int32_t column = first_column + (warp_n_ * kI + i) * (p_.gated ? 8 : 16);
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        const int32_t row = item.first_row + (warp_t_ * kJ + j) * 8;
        if (row < item.end_row) StoreMma<Elem>(p_, sum_[i][j], {row, item.end_row, column, bias}, scratch);
      }
    }
  }

 private:
  // Fragments of this warp's tokens for 16 of k, two mma's at a time where there are two.
  __device__ void LoadX(const char* x_stage, int chunk, uint32_t (&x)[kJ][2]) const {
    const int first = warp_t_ * kJ * 8;
    if constexpr (kJ == 1) {
      LdMatrixX2(x[0], x_stage + Shape::At(first + lane_ % 8, chunk + lane_ / 8 % 2));
    } else {
#pragma unroll
      for (int j = 0; j < kJ; j += 2) {
        uint32_t pair[4];
        LdMatrixX4(pair, x_stage + Shape::At(first + j * 8 + lane_ / 16 * 8 + lane_ % 8, chunk + lane_ / 8 % 2));
        x[j][0] = pair[0], x[j][1] = pair[1], x[j + 1][0] = pair[2], x[j + 1][1] = pair[3];
      }
    }
  }

  // fn(sum, index) over this thread's sums; the 32 indices of a warp lie side by side.
  template <class Fn>
  __device__ void Each(Fn fn) {
#pragma unroll
    for (int i = 0; i < kI; ++i) {
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) fn(sum_[i][j][v], ((i * kJ + j) * 4 + v) * 32 + lane_);
      }
    }
  }

 protected:  // kernels that multiply in another way have them, too
  const GemmProblem& p_;
  const int lane_, warp_n_, warp_t_, warp_k_;
  bool idle_ = false;
  float sum_[kI][kJ][4];
};

}  // namespace switchyard::ops::cuda
