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
  CombineArgs a;
  bool aligned;

  __device__ void AddExperts(int64_t row, int64_t column, Acc (&sum)[kCount]) const {
    const int top_k = static_cast<int>(a.top_k);
    const int32_t* slots = a.slot_row + row * top_k;
    const Acc* weights = a.weight == nullptr ? nullptr : static_cast<const Acc*>(a.weight) + row * a.weight_stride;
    const Elem* y = static_cast<const Elem*>(a.y) + column;
    const int64_t left = a.width - column;
    for (int k = 0; k < top_k; k += kInFlight) {
      int32_t slot[kInFlight];
      Acc w[kInFlight];
      Pack<Elem, kCount> in[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        slot[i] = k + i < top_k ? slots[k + i] : -1;
        w[i] = weights == nullptr ? Acc{1} : k + i < top_k ? weights[k + i] : Acc{0};
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (slot[i] >= 0) in[i] = LoadPack<kCount>(y + slot[i] * a.y_stride, left, aligned);
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
    const int64_t column = pack * kCount, left = a.width - column;
    Acc sum[kCount] = {};
    AddExperts(row, column, sum);
    if (a.shared != nullptr) {
      const Acc* logit = static_cast<const Acc*>(a.shared_gate) + row * a.gate_stride;
      const Acc gate = a.shared_gate == nullptr ? Acc{1} : Acc{1} / Add(Exp(-*logit), Acc{1});
      const Elem* shared = static_cast<const Elem*>(a.shared) + row * a.shared_stride + column;
      const auto in = LoadPack<kCount>(shared, left, aligned);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] = Fma(gate, Widen(in.at[j]), sum[j]);
    }
    constexpr int kLoad = kCount / kAccPacks;
    Acc* to = static_cast<Acc*>(a.residual) + row * a.residual_stride + column;
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
    const bool aligned =
        Aligned<Op::kCount>(static_cast<const Elem*>(a.y), a.y_stride) &&
        Aligned<Op::kCount>(static_cast<AccT<Elem>*>(a.residual), a.residual_stride) &&
        (a.shared == nullptr || Aligned<Op::kCount>(static_cast<const Elem*>(a.shared), a.shared_stride));
    return LaunchRows(call, Op{a, aligned}, rows, (a.width + Op::kCount - 1) / Op::kCount);
  });
}

}  // namespace switchyard::ops::cuda
