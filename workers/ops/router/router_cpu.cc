#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/router/top_k_choice.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Acc>
SY_INLINE void RouteRow(const RouterArgs& a, int64_t t) {
  constexpr int kN = Lanes<Acc>::kCount;
  const Acc* logits = static_cast<const Acc*>(a.logits) + t * a.logits_stride;
  int32_t* idx = a.topk_idx + t * a.idx_stride;
  Acc* weight = static_cast<Acc*>(a.topk_weight) + t * a.weight_stride;
  ChooseTopK(logits, a.experts, a.top_k, idx);

  const Acc max = logits[idx[0]];
  VecT<Acc> sums = {};
  for (int64_t e = 0; e < a.experts; e += kN) {
    sums += Exp(LoadOrLowest(logits + e, a.experts - e < kN ? a.experts - e : kN) - max);
  }
  const Acc total = SumLanes(sums);
  Acc kept = 0;
  for (int64_t k = 0; k < a.top_k; ++k) {
    weight[k] = Exp(Splat(logits[idx[k]] - max))[0] / total;
    kept += weight[k];
  }
  if (!a.renormalize) return;
  for (int64_t k = 0; k < a.top_k; ++k) weight[k] /= kept;
}

}  // namespace

void RouterRows(const RouterArgs& args, int64_t begin, int64_t end) {
  VisitAcc(args.dtype, [&]<class Acc>() {
    for (int64_t t = begin; t < end; ++t) RouteRow<Acc>(args, t);
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
