// residual[t] = table[tokens[t]], widened.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

template <class Elem>
struct EmbedOp {
  static constexpr int kCount = kPackOf<AccT<Elem>>;
  const Elem* __restrict__ table;      // [V, H]
  const int32_t* __restrict__ tokens;  // [T]
  AccT<Elem>* __restrict__ residual;   // [T, H]
  int64_t table_stride, residual_stride, width;
  bool aligned;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = width - column;
    const int32_t token = tokens[row];
    Pack<AccT<Elem>, kCount> out = {};
    // A step may be enqueued before it is known that the one before drew nothing (-1): its rows are zeros, not whatever
    // lies before the table.
    if (token >= 0) {
      const auto in = LoadPack<kCount>(table + token * table_stride + column, left, aligned);
#pragma unroll
      for (int i = 0; i < kCount; ++i) out.at[i] = Widen(in.at[i]);
    }
    StorePack(out, residual + row * residual_stride + column, left, aligned);
  }
};

}  // namespace

int Embed(const CudaCall& call, const EmbedArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = EmbedOp<Elem>;
    Op op = {.table = static_cast<const Elem*>(a.table),
             .tokens = a.tokens,
             .residual = static_cast<AccT<Elem>*>(a.residual),
             .table_stride = a.table_stride,
             .residual_stride = a.residual_stride,
             .width = a.width,
             .aligned = false};
    op.aligned = Aligned<Op::kCount>(op.table, a.table_stride) && Aligned<Op::kCount>(op.residual, a.residual_stride);
    return LaunchRows(call, op, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
