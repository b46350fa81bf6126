#include "scheduler/popularity/routing_view.h"

namespace switchyard {

std::vector<int64_t> CountsOf(const RoutingView& batch, int layer) {
  std::vector<int64_t> counts(static_cast<size_t>(batch.shape.num_experts));
  for (int64_t t = 0; t < batch.num_tokens; ++t)
    for (const int16_t expert : batch.Experts(t, layer))
      if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  return counts;
}

}  // namespace switchyard
