// The tiles of a product, found on the device: the host does not know how many rows an expert has.
//
// Every CTA reads the offsets and adds up, in shared memory, how many tiles of rows each expert needs; a binary search
// then finds work item i in [0, num_items).  CTA b takes items b, b + gridDim.x, ...: experts without rows, or without
// a weight, cost nothing, all CTAs share an expert with many rows, and any grid is valid.  Items run over (expert, tile
// of columns, tile of rows), rows fastest, so that neighbouring CTAs read the same weights at the same time: once from
// memory, then from L2.  For that they must stay together, so an expert's tiles have equal numbers of rows, to 8: of
// 256 rows as 192 and 64 the CTAs with the short tiles ran ahead, and an H100 read every weight twice.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"

namespace switchyard::ops::cuda {

struct GemmItem {
  const void* weight;
  int32_t first_row, end_row;  // this tile's rows of the product
  int32_t column_tile;
};

class GemmPlan {
 public:
  // `shared`: CudaGemmPlanBytes, 16-byte aligned.  By all threads of the CTA; ends with a barrier.
  __device__ GemmPlan(const GemmProblem& p, void* shared, int tile_rows, int tile_columns)
      : weights_(static_cast<const void**>(shared)),
        row_begin_(reinterpret_cast<int32_t*>(weights_ + p.experts)),
        tile_begin_(row_begin_ + p.experts + 1),
        experts_(p.experts),
        tile_rows_(tile_rows),
        column_tiles_((p.columns + tile_columns - 1) / tile_columns) {
    for (int e = threadIdx.x; e <= experts_; e += blockDim.x) {
      row_begin_[e] = p.offsets != nullptr ? p.offsets[e] : e == 0 ? 0 : static_cast<int32_t>(p.rows);
      if (e < experts_) weights_[e] = p.weights != nullptr ? p.weights[e] : p.weight;
    }
    __syncthreads();
    if (threadIdx.x < 32) AddUpTiles(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  __device__ int32_t num_items() const { return tile_begin_[experts_] * column_tiles_; }

  // REQUIRES: 0 <= item < num_items().
  __device__ GemmItem Find(int32_t item) const {
    const int32_t tile = item / column_tiles_;
    int low = 0, high = experts_;  // tile_begin_[low] <= tile < tile_begin_[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (tile_begin_[middle] <= tile ? low : high) = middle;
    }
    const int32_t tiles = tile_begin_[low + 1] - tile_begin_[low];
    const int32_t local = item - tile_begin_[low] * column_tiles_;
    const int32_t begin = row_begin_[low], end = row_begin_[low + 1];
    const int32_t rows = ((end - begin + tiles - 1) / tiles + 7) / 8 * 8;  // tile_rows_ at most; no tile has none
    const int32_t first_row = begin + local % tiles * rows;
    return {weights_[low], first_row, min(end, first_row + rows), local / tiles};
  }

 private:
  // By the first warp: tile_begin_[e] = tiles of the experts before e.
  __device__ void AddUpTiles(int lane) {
    int32_t before = 0;
    for (int base = 0; base < experts_; base += 32) {
      const int e = base + lane;
      const bool here = e < experts_ && weights_[e] != nullptr;
      const int32_t own = here ? (row_begin_[e + 1] - row_begin_[e] + tile_rows_ - 1) / tile_rows_ : 0;
      int32_t sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int32_t left = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += left;
      }
      if (e < experts_) tile_begin_[e] = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) tile_begin_[experts_] = before;
  }

  const void** weights_;  // [experts]
  int32_t* row_begin_;    // [experts + 1]
  int32_t* tile_begin_;   // [experts + 1]
  int32_t experts_, tile_rows_, column_tiles_;
};

}  // namespace switchyard::ops::cuda
