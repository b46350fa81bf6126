// A matrix product without tensor cores, for fp32, fp64 and any k: each thread computes one output, and adds its
// products in order of k by fused multiply-adds in AccDType.  Slow: for fixtures and small models.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_store_cuda.h"

namespace switchyard::ops::cuda {

// Tiles of kCudaPlainTile rows and columns (gated: columns of y), k in steps of as many.
template <class Elem, class Accum>
class PlainTile {
 public:
  static constexpr int kSide = kCudaPlainTile;
  using Rows = Accum[kSide][kSide + 1];

  // Arrays in shared memory.
  __device__ PlainTile(const GemmProblem& p, Rows& x, Rows& gate, Rows& up)
      : p_(p), x_(x), gate_(gate), up_(up), row_(threadIdx.x / kSide), column_(threadIdx.x % kSide) {}

  // By kSide * kSide threads.
  __device__ void Run(const GemmItem& item) {
    const int64_t row = int64_t{item.first_row} + row_;
    const int64_t column = int64_t{item.column_tile} * kSide + column_;
    const int64_t w_row = int64_t{item.column_tile} * kSide + row_;  // that this thread helps to load
    const Elem* x = nullptr;
    if (row < item.end_row) {
      x = static_cast<const Elem*>(p_.x) + (p_.x_rows != nullptr ? p_.x_rows[row] : row) * p_.x_stride;
    }
    const Elem* w = w_row < p_.columns ? static_cast<const Elem*>(item.weight) + w_row * p_.w_stride : nullptr;
    Accum sum = 0, up_sum = 0;
    for (int64_t k = 0; k < p_.k; k += kSide) {
      const bool in_k = k + column_ < p_.k;
      x_[row_][column_] = in_k && x != nullptr ? Widen(x[k + column_]) : Accum{0};
      gate_[row_][column_] = in_k && w != nullptr ? Widen(w[k + column_]) : Accum{0};
      if (p_.gated) {
        up_[row_][column_] = in_k && w != nullptr ? Widen(w[p_.columns * p_.w_stride + k + column_]) : Accum{0};
      }
      __syncthreads();
      const int steps = p_.k - k < kSide ? static_cast<int>(p_.k - k) : kSide;
      for (int i = 0; i < steps; ++i) {
        sum = fma(x_[row_][i], gate_[column_][i], sum);
        if (p_.gated) up_sum = fma(x_[row_][i], up_[column_][i], up_sum);
      }
      __syncthreads();
    }
    if (row >= item.end_row || column >= p_.columns) return;
    if (const void* const bias = BiasOf(p_, item.weight); bias != nullptr) {
      sum += Widen(static_cast<const Elem*>(bias)[column]);
      if (p_.gated) up_sum += Widen(static_cast<const Elem*>(bias)[p_.columns + column]);
    }
    if (p_.gated) sum = Glu(p_, sum, up_sum);
    if (p_.y_dtype == p_.dtype) return StoreSum<Elem>(row, column, sum);
    StoreSum<Accum>(row, column, sum);
  }

 private:
  template <class Out>
  __device__ void StoreSum(int64_t row, int64_t column, Accum sum) const {
    Out* y = static_cast<Out*>(p_.y) + row * p_.y_stride + column;
    *y = Narrow<Out>(p_.accumulate ? Widen(*y) + sum : sum);
  }

  const GemmProblem& p_;
  Rows &x_, &gate_, &up_;
  const int row_, column_;
};

}  // namespace switchyard::ops::cuda
