// The op that treats every element by itself: clamp.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

template <class Elem>
struct ClampOp {
  static constexpr int kCount = kPackOf<Elem>;
  Elem* x;  // [T, H]
  int64_t x_stride, width;
  AccT<Elem> limit;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = width - column;
    Elem* at = x + row * x_stride + column;
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
    Elem* x = static_cast<Elem*>(a.x);
    const Op op = {.x = x,
                   .x_stride = a.x_stride,
                   .width = a.width,
                   .limit = static_cast<AccT<Elem>>(a.limit),
                   .aligned = Aligned<Op::kCount>(x, a.x_stride)};
    return LaunchRows(call, op, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
