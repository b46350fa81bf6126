// residual[t] += Σ_k weight[t, k] · y[slot_row[t, k]]  +  sigmoid(shared_gate[t]) · shared[t], as a chain of fmas in
// the order of k that begins at zero; then one addition.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kInFlight = 4;  // rows of y that a thread loads before it adds them

template <class Elem>
struct CombineOp {
  using Acc = AccT<Elem>;
  static constexpr int kCount = kPackOf<Elem>;
  static constexpr int kAccPacks = kCount * static_cast<int>(sizeof(Acc)) / 16;
  const Elem* __restrict__ y;            // [rows, H]
  const int32_t* __restrict__ slot_row;  // [T, K]
  const Acc* __restrict__ weight;        // [T, K]
  const Elem* __restrict__ shared;       // [T, H] or null
  const Acc* __restrict__ shared_gate;   // [T, 1] or null
  Acc* residual;                         // [T, H]
  int64_t y_stride, weight_stride, shared_stride, gate_stride, residual_stride;
  int64_t width;
  int top_k;
  bool aligned;

  __device__ void AddExperts(int64_t row, int64_t column, Acc (&sum)[kCount]) const {
    const int32_t* slots = slot_row + row * top_k;
    const Acc* weights = weight + row * weight_stride;
    const int64_t left = width - column;
    for (int k = 0; k < top_k; k += kInFlight) {
      int32_t slot[kInFlight];
      Acc w[kInFlight];
      Pack<Elem, kCount> in[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        slot[i] = k + i < top_k ? slots[k + i] : -1;
        w[i] = k + i < top_k ? weights[k + i] : Acc{0};
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (slot[i] >= 0) in[i] = LoadPack<kCount>(y + slot[i] * y_stride + column, left, aligned);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (slot[i] < 0) continue;
#pragma unroll
        for (int j = 0; j < kCount; ++j) sum[j] = Fma(w[i], Widen(in[i].at[j]), sum[j]);
      }
    }
  }

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t column = pack * kCount, left = width - column;
    Acc sum[kCount] = {};
    AddExperts(row, column, sum);
    if (shared != nullptr) {
      const Acc gate = shared_gate == nullptr ? Acc{1} : Acc{1} / Add(Exp(-shared_gate[row * gate_stride]), Acc{1});
      const auto in = LoadPack<kCount>(shared + row * shared_stride + column, left, aligned);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] = Fma(gate, Widen(in.at[j]), sum[j]);
    }
    constexpr int kLoad = kCount / kAccPacks;
    Acc* to = residual + row * residual_stride + column;
#pragma unroll
    for (int i = 0; i < kAccPacks; ++i) {
      auto out = LoadPack<kLoad>(to + i * kLoad, left - i * kLoad, aligned);
#pragma unroll
      for (int j = 0; j < kLoad; ++j) out.at[j] = Add(out.at[j], sum[i * kLoad + j]);
      StorePack(out, to + i * kLoad, left - i * kLoad, aligned);
    }
  }
};

}  // namespace

int Combine(const CudaCall& call, const CombineArgs& a, int64_t rows) {
  return VisitElem(a.dtype, [&]<class Elem>() {
    using Op = CombineOp<Elem>;
    Op op = {.y = static_cast<const Elem*>(a.y),
             .slot_row = a.slot_row,
             .weight = static_cast<const AccT<Elem>*>(a.weight),
             .shared = static_cast<const Elem*>(a.shared),
             .shared_gate = static_cast<const AccT<Elem>*>(a.shared_gate),
             .residual = static_cast<AccT<Elem>*>(a.residual),
             .y_stride = a.y_stride,
             .weight_stride = a.weight_stride,
             .shared_stride = a.shared_stride,
             .gate_stride = a.gate_stride,
             .residual_stride = a.residual_stride,
             .width = a.width,
             .top_k = static_cast<int>(a.top_k),
             .aligned = false};
    op.aligned = Aligned<Op::kCount>(op.y, a.y_stride) && Aligned<Op::kCount>(op.residual, a.residual_stride) &&
                 (a.shared == nullptr || Aligned<Op::kCount>(op.shared, a.shared_stride));
    return LaunchRows(call, op, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
