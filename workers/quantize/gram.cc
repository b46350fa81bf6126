#include "workers/quantize/gram.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kBlock = 128;      // columns of a step of the factorization
constexpr int64_t kStrip = 512;      // columns whose products are in memory
constexpr int64_t kTransposed = 64;  // columns that a thread transposes at a time

// [k, T] fp32 of x [T, k].
Tensor Transposed(const Stream& stream, const TensorView& x) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  Tensor to(DType::kF32, {columns, rows});
  VisitDType(x.dtype(), [&]<class Elem>() {
    stream.pool().ParallelFor(columns, kTransposed, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const Elem* const from = x.row<Elem>(row);
        for (int64_t i = begin; i < end; ++i)
          to.data<float>()[i * rows + row] = static_cast<float>(static_cast<Acc<Elem>>(from[i]));
      }
    });
  });
  return to;
}

// Column j of R in rows [first, last], last <= j, from what the blocks behind [begin, end) have left of H.
void FactorColumn(double* h, int64_t k, int64_t j, int64_t end, int64_t first, int64_t last) {
  const double* const row_j = h + j * k;
  for (int64_t i = first; i <= last; ++i) {
    double sum = h[i * k + j];
    for (int64_t t = j + 1; t < end; ++t) sum -= h[i * k + t] * row_j[t];
    h[i * k + j] = i == j ? std::sqrt(sum) : sum / row_j[j];
  }
}

// Rows [0, begin) of the block's columns, and what they take from H before them.
absl::Status FactorAbove(const Stream& stream, const TensorView& sums, int64_t begin, int64_t end) {
  double* const h = sums.data<double>();
  const int64_t k = sums.dim(0), width = end - begin;
  Tensor panel(DType::kF64, {begin, width}), less(DType::kF64, {begin, width});
  stream.pool().ParallelFor(begin, 16, [&](int64_t first, int64_t last) {
    for (int64_t j = end - 1; j >= begin; --j) FactorColumn(h, k, j, end, first, last - 1);
    for (int64_t i = first; i < last; ++i) {
      for (int64_t t = 0; t < width; ++t) {
        panel.data<double>()[i * width + t] = h[i * k + begin + t];
        less.data<double>()[i * width + t] = -h[i * k + begin + t];
      }
    }
  });
  ASSIGN_OR_RETURN(const ops::Weight weight,
                   ops::PackWeight(stream, {.n = begin, .k = width, .dtype = DType::kF64}, panel));
  return ops::Gemm(stream, {.accumulate = true}, less, weight, TensorView(), sums.Rows(0, begin).Columns(0, begin));
}

}  // namespace

absl::Status Gram::Add(const Stream& stream, const TensorView& x) {
  const int64_t rows = x.dim(0), columns = sums_.dim(0);
  SY_CHECK_EQ(x.dim(1), columns);
  rows_ += rows;
  if (rows == 0) return absl::OkStatus();
  const Tensor transposed = Transposed(stream, x);
  // In strips of columns, each from its diagonal down.
  const int64_t step = std::min(columns, kStrip);
  const Tensor products(DType::kF32, {columns, step});
  for (int64_t first = 0; first < columns; first += step) {
    const int64_t count = std::min(step, columns - first), below = columns - first;
    ASSIGN_OR_RETURN(const ops::Weight weight, ops::PackWeight(stream, {.n = count, .k = rows, .dtype = DType::kF32},
                                                               transposed.view().Rows(first, count)));
    const TensorView part(products.view().raw(), DType::kF32, {below, count});
    RETURN_IF_ERROR(ops::Gemm(stream, {}, transposed.view().Rows(first, below), weight, TensorView(), part));
    stream.pool().ParallelFor(below, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* const to = sums_.view().row<double>(first + i) + first;
        for (int64_t c = 0; c < count; ++c) to[c] += static_cast<double>(part.row<float>(i)[c]);
      }
    });
  }
  return absl::OkStatus();
}

int64_t Gram::ScratchBytes(int64_t columns, int64_t rows) {
  return std::max(4 * (columns + kStrip) * rows + 4 * kStrip * columns, 3 * 8 * kBlock * columns);
}

absl::Status FactorInPlace(const Stream& stream, double damping, const TensorView& sums) {
  SY_CHECK(sums.contiguous() && sums.dim(0) == sums.dim(1));
  double* const h = sums.data<double>();
  const int64_t k = sums.dim(0);
  stream.pool().ParallelFor(k, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = i + 1; j < k; ++j) h[i * k + j] = h[j * k + i];
    }
  });
  double trace = 0;
  for (int64_t i = 0; i < k; ++i) trace += h[i * k + i];
  const double added = damping * trace / static_cast<double>(k);
  if (!(added > 0) || !std::isfinite(added)) {
    return absl::FailedPreconditionError(absl::StrCat("inputs whose squares have the sum ", trace));
  }
  for (int64_t i = 0; i < k; ++i) h[i * k + i] += added;
  for (int64_t end = k; end > 0; end -= std::min(kBlock, end)) {
    const int64_t begin = std::max<int64_t>(end - kBlock, 0);
    for (int64_t j = end - 1; j >= begin; --j) {
      FactorColumn(h, k, j, end, j, j);  // the diagonal, by which the others are divided
      FactorColumn(h, k, j, end, begin, j - 1);
      if (!(h[j * k + j] > 0)) return absl::FailedPreconditionError("inputs whose products are no positive matrix");
    }
    if (begin > 0) RETURN_IF_ERROR(FactorAbove(stream, sums, begin, end));
  }
  for (int64_t i = 1; i < k; ++i) std::memset(h + i * k, 0, static_cast<size_t>(i) * sizeof(double));
  return absl::OkStatus();
}

}  // namespace switchyard::quantize
