// The op that treats every element by itself: clamp.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

template <class Elem>
struct ClampOp {
  static constexpr int kCount = kPackOf<Elem>;
  ClampArgs a;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = a.width - column;
    const AccT<Elem> limit = static_cast<AccT<Elem>>(a.limit);
    Elem* at = static_cast<Elem*>(a.x) + row * a.x_stride + column;
    auto values = LoadPack<kCount>(at, left, aligned);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      AccT<Elem> v = Widen(values.at[i]);
      v = v > limit ? limit : v;  // false for NaN, which so stays
      v = v < -limit ? -limit : v;
      values.at[i] = Narrow<Elem>(v);
    }
    StorePack(values, at, left, aligned);
  }
};

}  // namespace

int Clamp(const CudaCall& call, const ClampArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = ClampOp<Elem>;
    const bool aligned = Aligned<Op::kCount>(static_cast<Elem*>(a.x), a.x_stride);
    return LaunchRows(call, Op{a, aligned}, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
