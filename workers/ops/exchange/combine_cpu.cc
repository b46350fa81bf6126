#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Elem>
SY_INLINE void CombineRow(const CombineArgs& a, int64_t t) {
  using AccType = AccT<Elem>;
  constexpr int kN = Lanes<Elem>::kCount;
  const int32_t* slots = a.slot_row + t * a.top_k;
  const AccType* weight = a.weight ? static_cast<const AccType*>(a.weight) + t * a.weight_stride : nullptr;
  const Elem* shared = a.shared ? static_cast<const Elem*>(a.shared) + t * a.shared_stride : nullptr;
  AccType gate{1};
  if (a.shared_gate) {
    const AccType logit = static_cast<const AccType*>(a.shared_gate)[t * a.gate_stride];
    gate = AccType{1} / (Exp(-Splat(logit))[0] + AccType{1});
  }
  AccType* residual = a.residual ? static_cast<AccType*>(a.residual) + t * a.residual_stride : nullptr;
  Elem* out = a.out ? static_cast<Elem*>(a.out) + t * a.out_stride : nullptr;
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    VecT<Elem> sum = {};
    for (int64_t k = 0; k < a.top_k; ++k) {
      if (slots[k] < 0) continue;
      const Elem* y = static_cast<const Elem*>(a.y) + slots[k] * a.y_stride;
      sum = Fma(Splat(weight ? weight[k] : AccType{1}), LoadPart(y + j, n), sum);
    }
    if (shared) sum = Fma(Splat(gate), LoadPart(shared + j, n), sum);
    if (out) {
      StorePart(sum, out + j, n);
    } else {
      StorePart(LoadPart(residual + j, n) + sum, residual + j, n);
    }
  }
}

}  // namespace

void CombineRows(const CombineArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) CombineRow<Elem>(args, t);
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
