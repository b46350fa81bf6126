// The first and the last kernel of the backward pass: the loss and the embedding.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Elem>
SY_INLINE double LossRow(const CrossEntropyArgs& a, int64_t t) {
  using Acc = AccT<Elem>;
  constexpr int kN = Lanes<Elem>::kCount;
  const Acc* x = RowAt<Acc>(a.logits, t);
  Elem* to = a.dlogits.at == nullptr ? nullptr : RowAt<Elem>(a.dlogits, t);
  const int32_t target = a.targets[t];
  if (target < 0) {
    for (int64_t j = 0; to != nullptr && j < a.vocab; j += kN) {
      StorePart<Elem>(VecT<Elem>{}, to + j, a.vocab - j < kN ? a.vocab - j : kN);
    }
    return 0;
  }
  const auto left = [&](int64_t j) { return a.vocab - j < kN ? a.vocab - j : kN; };
  VecT<Acc> largest = LoadOrLowest(x, left(0)), sums = {};
  for (int64_t j = kN; j < a.vocab; j += kN) largest = Max(LoadOrLowest(x + j, left(j)), largest);
  const Acc max = MaxLanes(largest), chosen = x[target];
  for (int64_t j = 0; j < a.vocab; j += kN) sums += Exp(LoadOrLowest(x + j, left(j)) - max);
  const Acc total = SumLanes(sums);
  if (to != nullptr) {
    const Acc scale = static_cast<Acc>(a.scale), share = scale / total;
    const VecT<Acc> chosen_probability = Exp(Splat(chosen - max));
    for (int64_t j = 0; j < a.vocab; j += kN) {
      StorePart<Elem>(Exp(LoadPart(x + j, left(j)) - max) * share, to + j, left(j));
    }
    StorePart<Elem>(chosen_probability * share - scale, to + target, 1);
  }
  return __builtin_log(static_cast<double>(total)) + (static_cast<double>(max) - static_cast<double>(chosen));
}

}  // namespace

void CrossEntropyRows(const CrossEntropyArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) a.losses[t] = LossRow<Elem>(a, t);
  });
}

void EmbedBackwardColumns(const EmbedBackwardArgs& a, int64_t begin, int64_t end) {
  VisitAcc(a.dtype, [&]<class Acc>() {
    constexpr int kN = Lanes<Acc>::kCount;
    for (int64_t t = 0; t < a.num_tokens; ++t) {
      const Acc* d = RowAt<Acc>(a.d, t);
      Acc* to = RowAt<Acc>(a.gradient, a.tokens[t]);
      for (int64_t j = begin; j < end; j += kN) {
        const int64_t n = end - j < kN ? end - j : kN;
        StorePart<Acc>(LoadPart(to + j, n) + LoadPart(d + j, n), to + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
