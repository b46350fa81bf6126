// The ops that treat every element by itself: embedding, clamp.
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
      v = v > limit ? limit : v;  // false for NaN, which stays NaN
      v = v < -limit ? -limit : v;
      values.at[i] = Narrow<Elem>(v);
    }
    StorePack(values, at, left, aligned);
  }
};

// residual[t] = table[tokens[t]], widened.
template <class Elem>
struct EmbedOp {
  static constexpr int kCount = kPackOf<AccT<Elem>>;
  EmbedArgs a;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = a.width - column;
    const int32_t token = a.tokens[row];
    Pack<AccT<Elem>, kCount> out = {};
    // A step may be enqueued before it is known that the one before drew no token (-1): its rows are zeros, not the
    // memory before the table.
    if (token >= 0) {
      const auto in =
          LoadPack<kCount>(static_cast<const Elem*>(a.table) + token * a.table_stride + column, left, aligned);
#pragma unroll
      for (int i = 0; i < kCount; ++i) out.at[i] = Widen(in.at[i]);
    }
    StorePack(out, static_cast<AccT<Elem>*>(a.residual) + row * a.residual_stride + column, left, aligned);
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

int Embed(const CudaCall& call, const EmbedArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = EmbedOp<Elem>;
    const bool aligned = Aligned<Op::kCount>(static_cast<const Elem*>(a.table), a.table_stride) &&
                         Aligned<Op::kCount>(static_cast<AccT<Elem>*>(a.residual), a.residual_stride);
    return LaunchRows(call, Op{a, aligned}, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
