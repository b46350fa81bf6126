// The ops that treat every element by itself: swiglu, clamp.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::cuda {
namespace {

// y = g / (1 + e^-g) · up, each operation rounded in AccDType, the result once to Elem.
template <class Elem>
struct SwiGluOp {
  static constexpr int kCount = kPackOf<Elem>;
  const Elem* gate;  // [T, F]
  const Elem* up;    // [T, F]
  Elem* y;           // [T, F] may be gate or up
  int64_t gate_stride, up_stride, y_stride, width;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = width - column;
    const auto g = LoadPack<kCount>(gate + row * gate_stride + column, left, aligned);
    const auto u = LoadPack<kCount>(up + row * up_stride + column, left, aligned);
    Pack<Elem, kCount> out;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const AccT<Elem> x = Widen(g.at[i]);
      out.at[i] = Narrow<Elem>(Mul(x / Add(Exp(-x), AccT<Elem>{1}), Widen(u.at[i])));
    }
    StorePack(out, y + row * y_stride + column, left, aligned);
  }
};

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

int SwiGlu(const CudaCall& call, const SwiGluArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = SwiGluOp<Elem>;
    Op op = {.gate = static_cast<const Elem*>(a.gate),
             .up = static_cast<const Elem*>(a.up),
             .y = static_cast<Elem*>(a.y),
             .gate_stride = a.gate_stride,
             .up_stride = a.up_stride,
             .y_stride = a.y_stride,
             .width = a.width,
             .aligned = false};
    op.aligned = Aligned<Op::kCount>(op.gate, a.gate_stride) && Aligned<Op::kCount>(op.up, a.up_stride) &&
                 Aligned<Op::kCount>(op.y, a.y_stride);
    return LaunchRows(call, op, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

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

}  // namespace switchyard::cuda
