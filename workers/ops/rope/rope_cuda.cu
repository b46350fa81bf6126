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
  RopeArgs r;
  int64_t packs_per_head;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t half = r.half;
    const int64_t head = pack / packs_per_head, j = (pack - head * packs_per_head) * kCount, left = half - j;
    const int64_t at = int64_t{r.table_rows[row]} * half + j;
    const Acc *cos = static_cast<const Acc*>(r.cos) + at, *sin = static_cast<const Acc*>(r.sin) + at;
    Elem* first = static_cast<Elem*>(r.x) + row * r.x_stride + head * r.head_dim + j;
    auto a = LoadPack<kCount>(first, left, aligned), b = LoadPack<kCount>(first + half, left, aligned);
    constexpr int kLoad = kCount / kAccPacks;
    Pack<Acc, kLoad> c[kAccPacks], s[kAccPacks];
#pragma unroll
    for (int i = 0; i < kAccPacks; ++i) {
      c[i] = LoadPack<kLoad>(cos + i * kLoad, left - i * kLoad, aligned);
      s[i] = LoadPack<kLoad>(sin + i * kLoad, left - i * kLoad, aligned);
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
    const int64_t packs_per_head = (a.half + Op::kCount - 1) / Op::kCount;
    const bool aligned = Aligned<Op::kCount>(static_cast<Elem*>(a.x), a.x_stride) && a.head_dim % Op::kCount == 0 &&
                         Aligned<Op::kCount>(static_cast<const AccT<Elem>*>(a.cos), a.half) &&
                         Aligned<Op::kCount>(static_cast<const AccT<Elem>*>(a.sin), a.half);
    return LaunchRows(call, Op{a, packs_per_head, aligned}, rows, a.heads * packs_per_head);
  });
}

}  // namespace switchyard::ops::cuda
