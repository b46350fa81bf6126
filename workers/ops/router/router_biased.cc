#include "workers/ops/router/router_biased.h"

#include <cmath>

#include "workers/ops/core/thread_scratch.h"
#include "workers/ops/router/top_k_choice.h"

namespace switchyard::ops {
namespace {

template <class Number>
void Softmax(const Number* logits, int64_t experts, Number* p) {
  Number max = logits[0], total = 0;
  for (int64_t e = 1; e < experts; ++e) max = Above(logits[e], max) ? logits[e] : max;
  for (int64_t e = 0; e < experts; ++e) {
    p[e] = std::exp(logits[e] - max);
    total += p[e];
  }
  for (int64_t e = 0; e < experts; ++e) p[e] /= total;
}

template <class Number>
void Route(const RouterDesc& desc, const Number* logits, int64_t experts, int32_t* idx, Number* weight) {
  Number* const p = static_cast<Number*>(ThreadScratch(ScratchUse::kTask, 2 * experts * sizeof(Number)));
  Number* const scores = p + experts;
  const Number* const bias = desc.bias.data<Number>();
  Softmax(logits, experts, p);
  for (int64_t e = 0; e < experts; ++e) scores[e] = p[e] + bias[e];
  ChooseTopK(scores, experts, desc.top_k, idx);
  Number kept = 0;
  for (int64_t k = 0; k < desc.top_k; ++k) {
    weight[k] = p[idx[k]];
    kept += weight[k];
  }
  if (!desc.renormalize) return;
  for (int64_t k = 0; k < desc.top_k; ++k) weight[k] /= kept;
}

}  // namespace

void RouteBiasedRows(const RouterDesc& desc, const TensorView& logits, const TensorView& topk_idx,
                     const TensorView& topk_weight, int64_t begin, int64_t end) {
  const auto route = [&]<class Number>() {
    for (int64_t t = begin; t < end; ++t) {
      Route<Number>(desc, logits.row<Number>(t), logits.dim(1), topk_idx.row<int32_t>(t), topk_weight.row<Number>(t));
    }
  };
  if (logits.dtype() == DType::kF64) return route.template operator()<double>();
  route.template operator()<float>();
}

}  // namespace switchyard::ops
