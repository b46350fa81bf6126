// y1 = x1·cos - x2·sin,  y2 = x2·cos + x1·sin, for the pairs (j, j + half) of every head.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

// A pack is that many pairs of one head.
template <class Elem>
struct RopeOp {
  using Acc = AccT<Elem>;
  static constexpr int kCount = kPackOf<Elem>;
  static constexpr int kAccPacks = kCount * static_cast<int>(sizeof(Acc)) / 16;
  const Acc* __restrict__ cos;             // [table rows, half]
  const Acc* __restrict__ sin;             // [table rows, half]
  const int32_t* __restrict__ table_rows;  // [T]
  Elem* x;                                 // [T, heads * head_dim]
  int64_t x_stride, head_dim, half, packs_per_head;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t head = pack / packs_per_head, j = (pack - head * packs_per_head) * kCount, left = half - j;
    const int64_t at = int64_t{table_rows[row]} * half + j;
    Elem* first = x + row * x_stride + head * head_dim + j;
    auto a = LoadPack<kCount>(first, left, aligned), b = LoadPack<kCount>(first + half, left, aligned);
    constexpr int kLoad = kCount / kAccPacks;
    Pack<Acc, kLoad> c[kAccPacks], s[kAccPacks];
#pragma unroll
    for (int i = 0; i < kAccPacks; ++i) {
      c[i] = LoadPack<kLoad>(cos + at + i * kLoad, left - i * kLoad, aligned);
      s[i] = LoadPack<kLoad>(sin + at + i * kLoad, left - i * kLoad, aligned);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Acc x1 = Widen(a.at[i]), x2 = Widen(b.at[i]);
      const Acc cos_j = c[i / kLoad].at[i % kLoad], sin_j = s[i / kLoad].at[i % kLoad];
      a.at[i] = Narrow<Elem>(Add(Mul(x1, cos_j), -Mul(x2, sin_j)));
      b.at[i] = Narrow<Elem>(Add(Mul(x2, cos_j), Mul(x1, sin_j)));
    }
    StorePack(a, first, left, aligned);
    StorePack(b, first + half, left, aligned);
  }
};

}  // namespace

int Rope(const CudaCall& call, const RopeArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = RopeOp<Elem>;
    Op op = {.cos = static_cast<const AccT<Elem>*>(a.cos),
             .sin = static_cast<const AccT<Elem>*>(a.sin),
             .table_rows = a.table_rows,
             .x = static_cast<Elem*>(a.x),
             .x_stride = a.x_stride,
             .head_dim = a.head_dim,
             .half = a.half,
             .packs_per_head = (a.half + Op::kCount - 1) / Op::kCount,
             .aligned = false};
    op.aligned = Aligned<Op::kCount>(op.x, a.x_stride) && a.head_dim % Op::kCount == 0 &&
                 Aligned<Op::kCount>(op.cos, a.half) && Aligned<Op::kCount>(op.sin, a.half);
    return LaunchRows(call, op, rows, a.heads * op.packs_per_head);
  });
}

}  // namespace switchyard::ops::cuda
