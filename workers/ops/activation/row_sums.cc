#include "workers/ops/activation/row_sums.h"

#include <cstdint>

#include "scheduler/base/check.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kGrain = 64;  // rows

}  // namespace

void ScaleRows(const Stream& stream, double scale, const TensorView& rows) {
  if (scale == 1) return;
  VisitDType(rows.dtype(), [&]<class Elem>() {
    const auto factor = static_cast<Acc<Elem>>(scale);
    stream.pool().ParallelFor(rows.dim(0), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Elem* const row = rows.row<Elem>(t);
        for (int64_t j = 0; j < rows.dim(1); ++j) row[j] = static_cast<Elem>(factor * static_cast<Acc<Elem>>(row[j]));
      }
    });
  });
}

void AddRounded(const Stream& stream, const TensorView& sums, const TensorView& y) {
  SY_CHECK(sums.dtype() == AccDType(y.dtype()));
  SY_CHECK_EQ(sums.dim(0), y.dim(0));
  SY_CHECK_EQ(sums.dim(1), y.dim(1));
  VisitDType(y.dtype(), [&]<class Elem>() {
    stream.pool().ParallelFor(y.dim(0), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const Acc<Elem>* const from = sums.row<Acc<Elem>>(t);
        Elem* const to = y.row<Elem>(t);
        for (int64_t j = 0; j < y.dim(1); ++j) to[j] = static_cast<Elem>(static_cast<Acc<Elem>>(to[j]) + from[j]);
      }
    });
  });
}

}  // namespace switchyard::ops
