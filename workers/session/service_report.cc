#include "workers/session/service_report.h"

#include <algorithm>
#include <utility>

namespace switchyard {

v1::ExpertReport ToProto(const ExpertReport& report, int64_t group_epoch) {
  v1::ExpertReport message;
  message.set_group_epoch(group_epoch);
  message.set_copied_bytes(report.copied_bytes);
  message.set_copy_seconds(report.copy_seconds);
  v1::EstimatorStandings* columns = message.mutable_standings();
  for (const EstimatorStanding& standing : report.standings) {
    columns->add_layers(standing.layer);
    columns->add_phases(static_cast<int32_t>(standing.phase));
    columns->add_aheads(standing.ahead);
    columns->add_estimators(static_cast<int32_t>(standing.estimator));
    columns->add_batches(standing.batches);
    columns->add_accuracies(static_cast<float>(standing.accuracy));
    columns->add_distances(static_cast<float>(standing.distance));
    columns->add_states(static_cast<int32_t>(standing.state));
    columns->add_used(standing.used);
    columns->add_off_distances(static_cast<float>(standing.off_distance));
    columns->add_marginal_distances(static_cast<float>(standing.marginal_distance));
  }
  for (size_t layer = 0; layer < report.placements.size(); ++layer) {
    const Placement& placement = report.placements[layer];
    message.set_num_experts(placement.num_experts);
    v1::LayerSlots* slots = message.add_layers();
    for (const std::vector<int32_t>& device : placement.slots) {
      slots->add_sizes(static_cast<int32_t>(device.size()));
      slots->mutable_experts()->Add(device.begin(), device.end());
    }
    for (const SlotOrigin origin : report.origins[layer]) slots->add_origins(static_cast<int32_t>(origin));
  }
  return message;
}

ExpertReport ReportOf(const RowForecaster* forecaster, const DecidedPlacer* placer) {
  ExpertReport report;
  if (forecaster != nullptr) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      const std::vector<EstimatorStanding> standings = StandingsOf(forecaster->phase(phase), phase);
      report.standings.insert(report.standings.end(), standings.begin(), standings.end());
    }
  }
  for (int layer = 0; placer != nullptr && layer < placer->num_layers(); ++layer) {
    report.placements.push_back(placer->placement(layer));
    std::vector<SlotOrigin>& origins = report.origins.emplace_back();
    const Placement& placement = report.placements.back();
    for (int device = 0; device < placement.num_devices(); ++device) {
      for (const int32_t expert : placement.slots[static_cast<size_t>(device)]) {
        origins.push_back(expert == kEmptySlot ? SlotOrigin::kStart : placer->OriginOf(layer, device, expert));
      }
    }
  }
  return report;
}

void ReportDuty::Enter(int64_t group_epoch) {
  group_epoch_ = group_epoch;
  untold_ = false;
  next_ = absl::InfinitePast();
}

void ReportDuty::Poll(absl::Time now) {
  if (!untold_ || now < next_) return;
  send_(ToProto(take_(), group_epoch_));
  untold_ = false;
  next_ = now + kReportEvery;
}

absl::Duration ReportDuty::patience(absl::Time now) const {
  return untold_ ? std::max(next_ - now, absl::ZeroDuration()) : absl::InfiniteDuration();
}

}  // namespace switchyard
