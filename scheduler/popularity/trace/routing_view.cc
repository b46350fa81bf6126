#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

std::vector<int64_t> CountsOf(const RoutingView& batch, int layer) {
  std::vector<int64_t> counts(static_cast<size_t>(batch.shape.num_experts));
  for (int64_t t = 0; t < batch.num_tokens; ++t)
    for (const int16_t expert : batch.Experts(t, layer))
      if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  return counts;
}

RoutingView TokensOf(RoutingView batch, int64_t begin, int64_t count) {
  batch.experts += begin * batch.token_stride;
  if (batch.token_ids != nullptr) batch.token_ids += begin;
  batch.num_tokens = count;
  return batch;
}

std::vector<int32_t> CountsByPart(const RoutingView& batch, int layer, int parts) {
  std::vector<int32_t> counts;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = batch.num_tokens * part / parts, end = batch.num_tokens * (part + 1) / parts;
    for (const int64_t rows : CountsOf(TokensOf(batch, begin, end - begin), layer))
      counts.push_back(static_cast<int32_t>(rows));
  }
  return counts;
}

}  // namespace switchyard::popularity
