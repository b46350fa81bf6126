#include "workers/session/report_handler.h"

#include <algorithm>
#include <utility>

#include "proto/link/placement_codec.h"

namespace switchyard::worker {

placement::ExpertReport ReportOf(const moe::RowLoadPredictor* load_predictor, const moe::PerStepBalancer* balancer) {
  placement::ExpertReport report;
  if (load_predictor != nullptr) {
    for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
      const std::vector<popularity::PredictorStats> stats =
          popularity::PredictorStatsOf(load_predictor->phase(phase), phase);
      report.predictor_stats.insert(report.predictor_stats.end(), stats.begin(), stats.end());
    }
  }
  for (int layer = 0; balancer != nullptr && layer < balancer->num_layers(); ++layer) {
    report.placements.push_back(balancer->placement(layer));
    std::vector<placement::SlotOrigin>& origins = report.origins.emplace_back();
    const placement::Placement& placement = report.placements.back();
    for (int device = 0; device < placement.num_devices(); ++device) {
      for (const int32_t expert : placement.slots[static_cast<size_t>(device)]) {
        origins.push_back(expert == placement::kEmptySlot ? placement::SlotOrigin::kStart
                                                          : balancer->OriginOf(layer, device, expert));
      }
    }
  }
  return report;
}

void ReportHandler::Enter(int64_t group_epoch) {
  group_epoch_ = group_epoch;
  unreported_ = false;
  next_ = absl::InfinitePast();
}

void ReportHandler::Poll(absl::Time now) {
  if (!unreported_ || now < next_) return;
  send_(link::ToProto(take_(), group_epoch_));
  unreported_ = false;
  next_ = now + kReportEvery;
}

absl::Duration ReportHandler::patience(absl::Time now) const {
  return unreported_ ? std::max(next_ - now, absl::ZeroDuration()) : absl::InfiniteDuration();
}

}  // namespace switchyard::worker
