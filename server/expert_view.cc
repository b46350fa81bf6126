#include "server/expert_view.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/placement/min_max.h"
#include "scheduler/placement/replica_map.h"

namespace switchyard {
namespace {

void DescribeLayer(int layer, const ExpertCensus& census, const ReplicaMap& replicas, v1::LayerExperts* out) {
  const absl::Span<const int64_t> prefill = census.Counts(Phase::kPrefill, layer);
  const absl::Span<const int64_t> decode = census.Counts(Phase::kDecode, layer);
  std::vector<int64_t> all(prefill.begin(), prefill.end());
  for (size_t e = 0; e < all.size(); ++e) all[e] += decode[e];
  out->set_layer(layer);
  out->set_busiest_expert_over_mean(BusiestOverMean(all));
  out->set_busiest_worker_over_mean(BusiestOverMean(MinimizeBusiest(replicas, all).loads));
  for (size_t e = 0; e < all.size(); ++e) {
    v1::ExpertUse* expert = out->add_experts();
    expert->set_prefill_rows(prefill[e]);
    expert->set_decode_rows(decode[e]);
    for (int32_t r = replicas.FirstReplica(static_cast<int>(e)); r < replicas.EndReplica(static_cast<int>(e)); ++r) {
      expert->add_workers(replicas.DeviceOf(r));
    }
  }
}

}  // namespace

absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers) {
  absl::flat_hash_set<int32_t> seen;
  for (const int32_t layer : request.layers()) {
    if (layer < 0 || layer >= num_moe_layers) {
      return BadField("layers",
                      absl::StrCat("names layer ", layer, "; the model has MoE layers 0 to ", num_moe_layers - 1),
                      absl::StrCat(num_moe_layers - 1), absl::StrCat(layer));
    }
    if (!seen.insert(layer).second) {
      return BadField("layers", absl::StrCat("names layer ", layer, " twice"), "once", absl::StrCat(layer));
    }
  }
  return absl::OkStatus();
}

v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertCensus& census,
                                       const Placement& placement) {
  v1::GetExpertsResponse out;
  out.set_num_moe_layers(census.shape().num_layers);
  out.set_num_experts(census.shape().num_experts);
  out.set_experts_per_token(census.shape().top_k);
  out.set_num_workers(placement.num_devices());
  out.set_prefill_tokens(census.num_tokens(Phase::kPrefill));
  out.set_decode_tokens(census.num_tokens(Phase::kDecode));
  out.set_halved_after_tokens(census.halve_after_tokens());
  const ReplicaMap replicas(placement);
  std::vector<int32_t> layers(request.layers().begin(), request.layers().end());
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(census.shape().num_layers));
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (const int32_t layer : layers) DescribeLayer(layer, census, replicas, out.add_layers());
  return out;
}

}  // namespace switchyard
