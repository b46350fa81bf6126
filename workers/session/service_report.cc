#include "workers/session/service_report.h"

#include <algorithm>
#include <utility>

#include "proto/link/expert_report_codec.h"

namespace switchyard {

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
