#include "tests/bench/training/step_path.h"

#include <numeric>
#include <vector>

namespace switchyard::bench {

PathInput PathOfStep(const StepShape& shape, const Links& links, const pipeline::MoeSchedule& schedule,
                     const RankLayout& ranks) {
  const std::vector<int> all = RowGroup(ranks.world, 1, 0), holders = RowGroup(ranks.world, ranks.packing, 0),
                         replicas = ReplicaGroup(ranks.world, ranks.packing, 0);
  const auto sum = [&](const std::vector<int>& members, const std::vector<int64_t>& elements) {
    return absl::Seconds(SumSeconds(links, members, static_cast<double>(TotalOf(elements) * kGradientBytes)));
  };
  const double peer_bytes = static_cast<double>(shape.row_bytes) / static_cast<double>(holders.size());
  PathInput input = {.layers = shape.layers,
                     .schedule = &schedule,
                     .attention = shape.attention,
                     .experts = shape.experts,
                     .all_to_all = absl::Seconds(WireSeconds(links, holders, peer_bytes)),
                     .head_sums = sum(all, shape.head),
                     .embedding_sums = sum(all, shape.embedding)};
  for (int i = 0; i < shape.layers; ++i) {
    const LayerElements layer = ElementsOfLayer(shape, i);
    input.feed_forward_sums.push_back(sum(all, layer.feed_forward) + sum(replicas, shape.expert) * ranks.packing);
    input.attention_out_sums.push_back(sum(all, layer.attention_out));
    input.attention_in_sums.push_back(sum(all, layer.attention_in));
  }
  return input;
}

absl::Duration AllSums(const PathInput& input) {
  absl::Duration sums = input.head_sums + input.embedding_sums;
  for (const auto* stage : {&input.feed_forward_sums, &input.attention_out_sums, &input.attention_in_sums}) {
    sums = std::accumulate(stage->begin(), stage->end(), sums);
  }
  return sums;
}

}  // namespace switchyard::bench
