// The ops that treat every element by itself: swiglu, clamp, convert, find_non_finite.
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

template <class From, class To>
struct ConvertOp {
  static constexpr int kCount = kPackOf<From, To>;
  const From* __restrict__ from;  // [rows, width]
  To* __restrict__ to;            // [rows, padded]
  int64_t from_stride, to_stride, width, padded;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount;
    const auto in = LoadPack<kCount>(from + row * from_stride + column, width - column, aligned);
    Pack<To, kCount> out;
#pragma unroll
    for (int i = 0; i < kCount; ++i) out.at[i] = Narrow<To>(static_cast<AccT<To>>(Widen(in.at[i])));
    StorePack(out, to + row * to_stride + column, padded - column, aligned);
  }
};

template <class Elem>
struct FindNonFiniteOp {
  static constexpr int kCount = kPackOf<Elem>;
  const Elem* __restrict__ x;  // [count]
  unsigned long long* first;
  int64_t count;
  bool aligned;

  __device__ void operator()(int64_t, int64_t pack) const {
    const int64_t begin = pack * kCount;
    const auto values = LoadPack<kCount>(x + begin, count - begin, aligned);
    int bad = kCount;
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i) {
      const AccT<Elem> v = Widen(values.at[i]);
      if (v - v != AccT<Elem>{0}) bad = i;
    }
    if (bad < kCount) atomicMin(first, static_cast<unsigned long long>(begin + bad));
  }
};

template <class From, class To>
int ConvertRows(const CudaCall& call, const ConvertArgs& a) {
  using Op = ConvertOp<From, To>;
  Op op = {.from = static_cast<const From*>(a.from),
           .to = static_cast<To*>(a.to),
           .from_stride = a.from_stride,
           .to_stride = a.to_stride,
           .width = a.width,
           .padded = std::max(a.padded, a.width),
           .aligned = false};
  op.aligned = Aligned<Op::kCount>(op.from, a.from_stride) && Aligned<Op::kCount>(op.to, a.to_stride);
  return LaunchRows(call, op, a.rows, (op.padded + Op::kCount - 1) / Op::kCount);
}

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

int Convert(const CudaCall& call, const ConvertArgs& a) {
  return VisitElem(a.from_dtype, [&]<class From>() {
    return VisitElem(a.dtype, [&]<class To>() { return ConvertRows<From, To>(call, a); });
  });
}

int FindNonFinite(const CudaCall& call, const FindNonFiniteArgs& a) {
  // -1 has all bits set: as an unsigned number the largest, which every index replaces.
  const int error = cudaMemsetAsync(a.first, 0xff, sizeof(*a.first), static_cast<cudaStream_t>(call.stream));
  if (error != 0) return error;
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = FindNonFiniteOp<Elem>;
    const Elem* x = static_cast<const Elem*>(a.x);
    const Op op = {.x = x,
                   .first = reinterpret_cast<unsigned long long*>(a.first),
                   .count = a.count,
                   .aligned = Aligned<Op::kCount>(x, 0)};
    return LaunchRows(call, op, 1, (a.count + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::cuda
