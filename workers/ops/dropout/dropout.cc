#include "workers/ops/dropout/dropout.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

absl::Status Check(const OpSite& at, const NoiseDesc& desc, const TensorView& x, const TensorView& y) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "x", x));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  RETURN_IF_ERROR(ExpectView(at, "y", y, y.dtype(), x.shape()));
  if (!(desc.rate >= 0 && desc.rate < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": rate ", desc.rate, " is outside [0, 1)"));
  }
  if (static_cast<int64_t>(desc.row_keys.size()) == x.dim(0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", desc.row_keys.size(), " keys for ", x.dim(0), " rows"));
}

// Calls run(site key, row of x, row of y) for all rows.
template <class RunRow>
void ForRows(const Stream& stream, const NoiseDesc& desc, const TensorView& x, const TensorView& y, RunRow run) {
  const int64_t row_bytes = x.dim(1) * (DTypeBytes(x.dtype()) + DTypeBytes(y.dtype()));
  VisitDType(x.dtype(), [&]<class From>() {
    VisitDType(y.dtype(), [&]<class To>() {
      stream.pool().ParallelFor(x.dim(0), RowGrain(row_bytes), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          run(SiteKey(desc.row_keys[t], static_cast<uint64_t>(desc.site), desc.layer), x.row<From>(t), y.row<To>(t));
        }
      });
    });
  });
}

template <class To, class From>
Acc<To> Widened(From value) {
  return static_cast<Acc<To>>(static_cast<Acc<From>>(value));
}

template <bool kAdd>
void Drop(const Stream& stream, const NoiseDesc& desc, const TensorView& x, const TensorView& y) {
  const int64_t width = x.dim(1);
  const uint64_t threshold = DropThreshold(desc.rate);
  ForRows(stream, desc, x, y, [&]<class From, class To>(uint64_t key, const From* from, To* to) {
    const auto scale = static_cast<Acc<To>>(1 / (1 - desc.rate));
    for (int64_t j = 0; j < width; ++j) {
      const Acc<To> kept = Keeps(key, j, threshold) ? Widened<To>(from[j]) * scale : Acc<To>{0};
      to[j] = static_cast<To>(kAdd ? Widened<To>(to[j]) + kept : kept);
    }
  });
}

}  // namespace

absl::Status Dropout(const Stream& stream, const NoiseDesc& desc, const TensorView& x, const TensorView& y) {
  RETURN_IF_ERROR(Check({"dropout", stream.device()}, desc, x, y));
  Drop<false>(stream, desc, x, y);
  return absl::OkStatus();
}

absl::Status AddDropped(const Stream& stream, const NoiseDesc& desc, const TensorView& x, const TensorView& y) {
  RETURN_IF_ERROR(Check({"add_dropped", stream.device()}, desc, x, y));
  Drop<true>(stream, desc, x, y);
  return absl::OkStatus();
}

absl::Status Jitter(const Stream& stream, const NoiseDesc& desc, const TensorView& x) {
  RETURN_IF_ERROR(Check({"jitter", stream.device()}, desc, x, x));
  const int64_t width = x.dim(1);
  ForRows(stream, desc, x, x, [&]<class From, class To>(uint64_t key, const From* from, To* to) {
    for (int64_t j = 0; j < width; ++j) {
      const auto factor = static_cast<Acc<To>>(1 - desc.rate + 2 * desc.rate * UniformDraw(key, j));
      to[j] = static_cast<To>(Widened<To>(from[j]) * factor);
    }
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
