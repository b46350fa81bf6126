#include "server/expert_view.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
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

absl::Status CheckIndex(absl::string_view field, int32_t value, int limit) {
  if (value >= 0 && value < limit) return absl::OkStatus();
  return BadField(std::string(field), absl::StrCat("is ", value, "; the model has 0 to ", limit - 1),
                  absl::StrCat(limit - 1), absl::StrCat(value));
}

v1::PlacementPlan::Outcome ToProto(PlanOutcome outcome) {
  switch (outcome) {
    case PlanOutcome::kCommitted:
      return v1::PlacementPlan::COMMITTED;
    case PlanOutcome::kAborted:
      return v1::PlacementPlan::ABORTED;
    case PlanOutcome::kNothingToDo:
      return v1::PlacementPlan::NOTHING_TO_DO;
  }
  return v1::PlacementPlan::OUTCOME_UNSPECIFIED;
}

void DescribePlan(const ResidencyView& placement, absl::Time now, v1::GetExpertsResponse* out) {
  out->set_placement(std::string(NameOf(placement.settings.mode)));
  out->set_placement_epoch(placement.epoch);
  if (!placement.outcome.has_value()) return;
  v1::PlacementPlan* plan = out->mutable_last_plan();
  plan->set_outcome(ToProto(*placement.outcome));
  plan->set_copies(placement.last_copies);
  plan->set_bytes(placement.last_bytes);
  plan->set_age_seconds(absl::ToDoubleSeconds(now - placement.ended));
  plan->set_reason(placement.reason);
}

}  // namespace

absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers, int num_experts) {
  if (request.has_why()) {
    RETURN_IF_ERROR(CheckIndex("why.layer", request.why().layer(), num_moe_layers));
    RETURN_IF_ERROR(CheckIndex("why.expert", request.why().expert(), num_experts));
  }
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
                                       const ResidencyView& placement, absl::Time now) {
  v1::GetExpertsResponse out;
  out.set_num_moe_layers(census.shape().num_layers);
  out.set_num_experts(census.shape().num_experts);
  out.set_experts_per_token(census.shape().top_k);
  out.set_num_workers(placement.layers->front().placement.num_devices());
  out.set_prefill_tokens(census.num_tokens(Phase::kPrefill));
  out.set_decode_tokens(census.num_tokens(Phase::kDecode));
  out.set_halved_after_tokens(census.halve_after_tokens());
  std::vector<int32_t> layers(request.layers().begin(), request.layers().end());
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(census.shape().num_layers));
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (const int32_t layer : layers) {
    DescribeLayer(layer, census, ReplicaMap((*placement.layers)[layer].placement), out.add_layers());
  }
  DescribePlan(placement, now, &out);
  if (request.has_why()) out.set_why(WhyThere(census, placement, request.why().layer(), request.why().expert()));
  return out;
}

std::string WhyThere(const ExpertCensus& census, const ResidencyView& placement, int layer, int expert) {
  if (placement.plan != nullptr) return Explain(*placement.plan, layer, expert);
  const int64_t tokens = census.num_tokens(Phase::kPrefill) + census.num_tokens(Phase::kDecode);
  const int64_t own = census.Counts(Phase::kPrefill, layer)[expert] + census.Counts(Phase::kDecode, layer)[expert];
  const std::vector<int32_t> hosts = (*placement.layers)[layer].placement.DevicesOf(expert);
  std::string text =
      absl::StrFormat("Layer %d, expert %d was chosen by %d of %d counted tokens; it lives on worker%s %s. ", layer,
                      expert, own, tokens, hosts.size() == 1 ? "" : "s", absl::StrJoin(hosts, ", "));
  if (placement.stages > 0) {
    absl::StrAppend(&text, "A plan is being carried out: ", placement.stages_in_use, " of its ", placement.stages,
                    placement.stages == 1 ? " stage is in use." : " stages are in use.");
  } else if (placement.outcome == PlanOutcome::kAborted) {
    absl::StrAppend(&text, "The last plan was aborted: ", placement.reason, ".");
  } else if (!placement.settings.rebalances()) {
    absl::StrAppend(&text, "Not moved: neighbouring experts share a worker, as --rebalance_steps is 0.");
  } else {
    absl::StrAppend(&text, "Not moved: neighbouring experts share a worker until the first plan, which is made every ",
                    placement.settings.rebalance_steps, " steps.");
  }
  return text;
}

}  // namespace switchyard
