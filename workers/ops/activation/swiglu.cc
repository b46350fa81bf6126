#include "workers/ops/activation/swiglu.h"

#include <cmath>
#include <cstdint>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status SwiGlu(const Stream& stream, const TensorView& sums, const TensorView& y) {
  const OpSite at = {"swiglu", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  RETURN_IF_ERROR(ExpectView(at, "sums", sums, y.dtype(), {y.dim(0), 2 * y.dim(1)}));
  constexpr int64_t kGrain = 16;  // rows
  const int64_t width = y.dim(1);
  VisitDType(y.dtype(), [&]<class Elem>() {
    stream.pool().ParallelFor(y.dim(0), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const Elem* const gate = sums.row<Elem>(t);
        const Elem* const up = gate + width;
        Elem* const to = y.row<Elem>(t);
        for (int64_t j = 0; j < width; ++j) {
          const auto g = static_cast<Acc<Elem>>(gate[j]);
          to[j] = static_cast<Elem>(g / (Acc<Elem>{1} + std::exp(-g)) * static_cast<Acc<Elem>>(up[j]));
        }
      }
    });
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
