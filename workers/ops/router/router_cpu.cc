#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/router/top_k_choice.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// Σ e^(logit - max) in the GPU's order (router_cuda.cu), whatever the instruction set: 64 bytes of interleaved sums,
// then these by halving.
template <class Acc>
SY_INLINE Acc SumOfExp(const Acc* logits, int64_t experts, Acc max) {
  constexpr int kN = Lanes<Acc>::kCount, kVectors = 64 / kVectorBytes;
  VecT<Acc> sums[kVectors] = {};
  for (int64_t e = 0, i = 0; e < experts; e += kN, ++i) {
    sums[i % kVectors] += Exp(LoadOrLowest(logits + e, experts - e < kN ? experts - e : kN) - max);
  }
  for (int n = kVectors / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return SumLanes(sums[0]);
}

template <class Acc>
SY_INLINE void RouteRow(const RouterArgs& a, int64_t t) {
  const Acc* logits = static_cast<const Acc*>(a.logits) + t * a.logits_stride;
  int32_t* idx = a.topk_idx + t * a.idx_stride;
  Acc* weight = static_cast<Acc*>(a.topk_weight) + t * a.weight_stride;
  ChooseTopK(logits, a.experts, a.top_k, idx);

  const Acc max = logits[idx[0]];
  const Acc total = SumOfExp(logits, a.experts, max);
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
