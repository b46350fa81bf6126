#include "server/balancer/expert_view.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement.h"

namespace switchyard::server {
namespace {

v1::Replica::Reason ReasonOf(placement::SlotOrigin origin) {
  return origin == placement::SlotOrigin::kStart      ? v1::Replica::START
         : origin == placement::SlotOrigin::kEstimate ? v1::Replica::ESTIMATE
                                                      : v1::Replica::GATE;
}

// Every layer's: neighbouring experts on a worker.
placement::Placement ResidentsOf(const ExpertsCopy& experts) {
  return placement::ContiguousPlacement(experts.load_stats.shape().num_experts, experts.num_workers, 0);
}

// Returns the report that says where experts are now; null: there is none, or experts do not move.
const ReceivedReport* PlacementReportOf(const ExpertsCopy& experts) {
  const bool reported = !experts.reports.empty() && experts.reports[0].report != nullptr &&
                        !experts.reports[0].report->placements.empty();
  return reported ? &experts.reports[0] : nullptr;
}

// [E] Returns the replicas of each of the layer's experts at the last report.
std::vector<std::vector<v1::Replica>> ReplicasNow(const ExpertsCopy& experts, int layer) {
  const placement::Placement residents = ResidentsOf(experts);
  std::vector<std::vector<v1::Replica>> now(static_cast<size_t>(residents.num_experts));
  const ReceivedReport* const source = PlacementReportOf(experts);
  if (source == nullptr) return now;
  const placement::Placement& placement = source->report->placements[static_cast<size_t>(layer)];
  auto origin = source->report->origins[static_cast<size_t>(layer)].begin();
  for (int device = 0; device < placement.num_devices(); ++device) {
    for (const int32_t expert : placement.slots[static_cast<size_t>(device)]) {
      const placement::SlotOrigin by = *origin++;
      if (expert == placement::kEmptySlot) continue;
      const bool resident = !placement::IsPaper(experts.mode) && residents.Holds(device, expert);
      v1::Replica& replica = now[static_cast<size_t>(expert)].emplace_back();
      replica.set_worker(device);
      replica.set_reason(resident ? v1::Replica::RESIDENT : ReasonOf(by));
    }
  }
  return now;
}

void DescribePredictors(int layer, const ExpertsCopy& experts, v1::LayerExperts* out) {
  std::vector<const std::vector<popularity::PredictorStats>*> ranks;
  for (const ReceivedReport& reported : experts.reports)
    if (reported.report != nullptr) ranks.push_back(&reported.report->predictor_stats);
  for (const popularity::GroupStats& stats : popularity::GroupStatsOf(ranks, layer)) {
    v1::EstimatorUse* use = out->add_estimators();
    use->set_estimator(std::string(NameOf(stats.mean.estimator)));
    use->set_phase(std::string(NameOf(stats.mean.phase)));
    use->set_layers_ahead(stats.mean.ahead);
    use->set_accuracy(stats.mean.accuracy);
    use->set_total_variation(stats.mean.distance);
    use->set_batches(stats.mean.batches);
    use->set_workers_using(stats.ranks_using);
  }
}

void DescribeLayer(int layer, const ExpertsCopy& experts, v1::LayerExperts* out) {
  const popularity::ExpertLoadStats& load_stats = experts.load_stats;
  const placement::Placement residents = ResidentsOf(experts);
  const std::vector<std::vector<v1::Replica>> now = ReplicasNow(experts, layer);
  const absl::Span<const int64_t> prefill = load_stats.Counts(popularity::Phase::kPrefill, layer);
  const absl::Span<const int64_t> decode = load_stats.Counts(popularity::Phase::kDecode, layer);
  std::vector<int64_t> all(prefill.begin(), prefill.end());
  for (size_t e = 0; e < all.size(); ++e) all[e] += decode[e];
  std::vector<int64_t> of_workers;
  for (const std::vector<int32_t>& slots : residents.slots) {
    of_workers.push_back(0);
    for (const int32_t expert : slots) {
      if (expert != placement::kEmptySlot) of_workers.back() += all[static_cast<size_t>(expert)];
    }
  }
  out->set_layer(layer);
  out->set_busiest_expert_over_mean(popularity::BusiestOverMean(all));
  out->set_busiest_worker_over_mean(popularity::BusiestOverMean(of_workers));
  for (size_t e = 0; e < all.size(); ++e) {
    v1::ExpertUse* expert = out->add_experts();
    expert->set_prefill_rows(prefill[e]);
    expert->set_decode_rows(decode[e]);
    for (const int32_t worker : residents.DevicesOf(static_cast<int>(e))) expert->add_workers(worker);
    expert->mutable_now()->Add(now[e].begin(), now[e].end());
  }
  DescribePredictors(layer, experts, out);
}

absl::Status CheckIndex(absl::string_view field, int32_t value, int limit) {
  if (value >= 0 && value < limit) return absl::OkStatus();
  return rpc::BadField(std::string(field), absl::StrCat("is ", value, "; the model has 0 to ", limit - 1),
                       absl::StrCat(limit - 1), absl::StrCat(value));
}

std::string WhyLivesThere(const ExpertsCopy& experts, int layer, int expert) {
  const popularity::ExpertLoadStats& load_stats = experts.load_stats;
  const int64_t tokens =
      load_stats.num_tokens(popularity::Phase::kPrefill) + load_stats.num_tokens(popularity::Phase::kDecode);
  const int64_t own = load_stats.Counts(popularity::Phase::kPrefill, layer)[expert] +
                      load_stats.Counts(popularity::Phase::kDecode, layer)[expert];
  std::string text = absl::StrFormat(
      "Layer %d, expert %d was chosen by %d of %d counted tokens; it lives on worker %d, with its neighbours.", layer,
      expert, own, tokens, ResidentsOf(experts).DevicesOf(expert).front());
  if (experts.in_place) text += " Any worker can compute it, as all are on one machine.";
  if (experts.budget_slots > 0) {
    absl::StrAppend(&text, " Under the expert budget a worker has room for ", experts.budget_slots,
                    " experts of all layers, and copies the others when they are hit; which, its policy decides.");
  }
  return text;
}

absl::string_view SpareReason(v1::Replica::Reason reason) {
  if (reason == v1::Replica::ESTIMATE) return "an estimate asked for it";
  return reason == v1::Replica::GATE ? "its layer's gate asked for it" : "since the group began";
}

// " Spare slots had it on ...", if any did.
std::string WhySpare(const ExpertsCopy& experts, int layer, int expert, absl::Time now) {
  const ReceivedReport* const source = PlacementReportOf(experts);
  if (source == nullptr) return "";
  std::vector<std::string> spare;
  const std::vector<std::vector<v1::Replica>> replicas = ReplicasNow(experts, layer);
  for (const v1::Replica& replica : replicas[static_cast<size_t>(expert)]) {
    if (replica.reason() == v1::Replica::RESIDENT) continue;
    spare.push_back(absl::StrCat("worker ", replica.worker(), " (", SpareReason(replica.reason()), ")"));
  }
  const std::string age = absl::StrFormat("%.1f s ago", absl::ToDoubleSeconds(now - source->at));
  if (spare.empty()) return absl::StrCat(" No spare slot had it ", age, ".");
  return absl::StrCat(" Spare slots had it ", age, " on ", absl::StrJoin(spare, ", "), ".");
}

// Returns the time of the oldest worker's report; InfinitePast: not all workers have reported.
absl::Time OldestReport(const ExpertsCopy& experts) {
  absl::Time oldest = experts.reports.empty() ? absl::InfinitePast() : absl::InfiniteFuture();
  for (const ReceivedReport& reported : experts.reports) oldest = std::min(oldest, reported.at);
  return oldest;
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
      return rpc::BadField("layers",
                           absl::StrCat("names layer ", layer, "; the model has MoE layers 0 to ", num_moe_layers - 1),
                           absl::StrCat(num_moe_layers - 1), absl::StrCat(layer));
    }
    if (!seen.insert(layer).second) {
      return rpc::BadField("layers", absl::StrCat("names layer ", layer, " twice"), "once", absl::StrCat(layer));
    }
  }
  return absl::OkStatus();
}

v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertsCopy& experts,
                                       absl::Time now) {
  const popularity::ExpertLoadStats& load_stats = experts.load_stats;
  v1::GetExpertsResponse out;
  out.set_num_moe_layers(load_stats.shape().num_layers);
  out.set_num_experts(load_stats.shape().num_experts);
  out.set_experts_per_token(load_stats.shape().top_k);
  out.set_num_workers(experts.num_workers);
  out.set_placement(std::string(NameOf(experts.mode)));
  out.set_prefill_tokens(load_stats.num_tokens(popularity::Phase::kPrefill));
  out.set_decode_tokens(load_stats.num_tokens(popularity::Phase::kDecode));
  out.set_halved_after_tokens(load_stats.halve_after_tokens());
  std::vector<int32_t> layers(request.layers().begin(), request.layers().end());
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(load_stats.shape().num_layers));
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (const int32_t layer : layers) DescribeLayer(layer, experts, out.add_layers());
  if (const absl::Time oldest = OldestReport(experts); oldest > absl::InfinitePast())
    out.set_report_age_seconds(absl::ToDoubleSeconds(now - oldest));
  if (request.has_why()) out.set_why(WhyThere(experts, request.why().layer(), request.why().expert(), now));
  return out;
}

std::string WhyThere(const ExpertsCopy& experts, int layer, int expert, absl::Time now) {
  return absl::StrCat(WhyLivesThere(experts, layer, expert), WhySpare(experts, layer, expert, now));
}

}  // namespace switchyard::server
