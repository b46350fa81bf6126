// Softmax over all experts, the choice of K, the two auxiliary losses: one row at a time.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// p = softmax(logits); returns log Σ exp(logits).
template <class Acc>
SY_INLINE Acc Softmax(const Acc* logits, int64_t experts, Acc* p) {
  constexpr int kN = Lanes<Acc>::kCount;
  Acc max = logits[0];
  for (int64_t e = 1; e < experts; ++e) max = logits[e] > max ? logits[e] : max;
  VecT<Acc> sums = {};
  for (int64_t e = 0; e < experts; e += kN) {
    const int64_t n = experts - e < kN ? experts - e : kN;
    const VecT<Acc> terms = Exp(LoadOrLowest(logits + e, n) - max);
    StorePart<Acc>(terms, p + e, n);
    sums += terms;
  }
  const Acc total = SumLanes(sums);
  for (int64_t e = 0; e < experts; ++e) p[e] /= total;
  return max + static_cast<Acc>(__builtin_log(total));
}

// Adds the gradients of the probabilities by the K weights.
template <class Acc>
SY_INLINE void AddWeights(const RouterBackwardArgs& a, int64_t t, const Acc* p, Acc* dp) {
  const int32_t* idx = RowAt<int32_t>(a.topk_idx, t);
  const Acc* dweight = RowAt<Acc>(a.dtopk_weight, t);
  if (!a.renormalize) {
    for (int64_t k = 0; k < a.top_k; ++k) {
      if (idx[k] >= 0) dp[idx[k]] += dweight[k];
    }
    return;
  }
  // w[k] = p[k] / kept.
  Acc kept = 0, dot = 0;
  for (int64_t k = 0; k < a.top_k; ++k) {
    if (idx[k] < 0) continue;
    dot += dweight[k] * p[idx[k]];
    kept += p[idx[k]];
  }
  for (int64_t k = 0; k < a.top_k; ++k) {
    if (idx[k] >= 0) dp[idx[k]] += (dweight[k] - dot / kept) / kept;
  }
}

template <class Acc, class Elem>
SY_INLINE void BackwardRow(const RouterBackwardArgs& a, int64_t t, Acc* p) {
  constexpr int kN = Lanes<Acc>::kCount;
  Acc* dp = p + a.experts;
  const Acc lse = Softmax(RowAt<const Acc>(a.logits, t), a.experts, p);
  for (int64_t e = 0; e < a.experts; ++e) dp[e] = a.dprob == nullptr ? 0 : static_cast<Acc>(a.dprob[e]);
  AddWeights(a, t, p, dp);
  VecT<Acc> dots = {};
  for (int64_t e = 0; e < a.experts; e += kN) {
    const int64_t n = a.experts - e < kN ? a.experts - e : kN;
    dots = Fma(LoadPart(p + e, n), LoadPart(dp + e, n), dots);
  }
  const VecT<Acc> shift = Splat(static_cast<Acc>(2 * a.z_scale) * lse - SumLanes(dots));
  Elem* to = RowAt<Elem>(a.dlogits, t);
  for (int64_t e = 0; e < a.experts; e += kN) {
    const int64_t n = a.experts - e < kN ? a.experts - e : kN;
    StorePart<Elem>(LoadPart(p + e, n) * (LoadPart(dp + e, n) + shift), to + e, n);
  }
}

}  // namespace

void RouterBackwardRows(const RouterBackwardArgs& a, int64_t begin, int64_t end, void* scratch) {
  VisitElem(a.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) {
      BackwardRow<AccT<Elem>, Elem>(a, t, static_cast<AccT<Elem>*>(scratch));
    }
  });
}

void RouterSums(const RouterSumsArgs& a, int64_t begin, int64_t end, void* to) {
  double* const sums = static_cast<double*>(to);
  for (int64_t e = 0; e <= a.experts; ++e) sums[e] = 0;
  VisitAcc(a.dtype, [&]<class Acc>() {
    for (int64_t t = begin; t < end; ++t) {
      const Acc* logits = RowAt<Acc>(a.logits, t);
      Acc max = logits[0];
      for (int64_t e = 1; e < a.experts; ++e) max = logits[e] > max ? logits[e] : max;
      double total = 0;
      for (int64_t e = 0; e < a.experts; ++e) total += __builtin_exp(static_cast<double>(logits[e]) - max);
      for (int64_t e = 0; e < a.experts; ++e) {
        sums[e] += __builtin_exp(static_cast<double>(logits[e]) - max) / total;
      }
      const double lse = max + __builtin_log(total);
      sums[a.experts] += lse * lse;
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
