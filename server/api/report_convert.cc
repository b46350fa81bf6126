#include "server/api/report_convert.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

absl::StatusOr<std::vector<EstimatorStanding>> FromProto(const v1::EstimatorStandings& columns) {
  const int count = columns.layers_size();
  for (const int size :
       {columns.phases_size(), columns.aheads_size(), columns.estimators_size(), columns.batches_size(),
        columns.accuracies_size(), columns.distances_size(), columns.states_size(), columns.used_size(),
        columns.off_distances_size(), columns.marginal_distances_size()}) {
    if (size == count) continue;
    return absl::InvalidArgumentError(absl::StrCat("estimators in columns of ", count, " and ", size));
  }
  std::vector<EstimatorStanding> standings(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int phase = columns.phases(i), estimator = columns.estimators(i), state = columns.states(i);
    if (phase < 0 || phase > 1 || estimator < 0 || estimator >= kNumLiveEstimators || state < 0 || state > 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("estimator ", estimator, " of phase ", phase, " in state ", state, " is none"));
    }
    standings[static_cast<size_t>(i)] = {.layer = columns.layers(i),
                                         .phase = static_cast<Phase>(phase),
                                         .ahead = columns.aheads(i),
                                         .estimator = static_cast<LiveEstimator>(estimator),
                                         .batches = columns.batches(i),
                                         .accuracy = columns.accuracies(i),
                                         .distance = columns.distances(i),
                                         .state = static_cast<EstimatorState>(state),
                                         .used = columns.used(i),
                                         .off_distance = columns.off_distances(i),
                                         .marginal_distance = columns.marginal_distances(i)};
  }
  return standings;
}

absl::Status AddLayer(const v1::LayerSlots& message, int num_experts, ExpertReport* report) {
  Placement& placement = report->placements.emplace_back();
  placement.num_experts = num_experts;
  auto at = message.experts().begin();
  for (const int32_t size : message.sizes()) {
    if (size < 0 || size > message.experts().end() - at) {
      return absl::InvalidArgumentError(
          absl::StrCat("a device of ", size, " slots, where ", message.experts().end() - at, " are left"));
    }
    placement.slots.emplace_back(at, at + size);
    at += size;
  }
  std::vector<SlotOrigin>& origins = report->origins.emplace_back();
  for (const int32_t origin : message.origins()) {
    if (origin < 0 || origin >= kNumSlotOrigins)
      return absl::InvalidArgumentError(absl::StrCat("slot origin ", origin, " is none"));
    origins.push_back(static_cast<SlotOrigin>(origin));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers, int num_experts) {
  ExpertReport report;
  ASSIGN_OR_RETURN(report.standings, FromProto(message.standings()));
  for (const v1::LayerSlots& layer : message.layers()) {
    RETURN_IF_ERROR(AddLayer(layer, message.num_experts(), &report));
  }
  report.copied_bytes = message.copied_bytes();
  report.copy_seconds = message.copy_seconds();
  const int devices = report.placements.empty() ? 0 : report.placements.front().num_devices();
  RETURN_IF_ERROR(
      CheckExpertReport(report, {.layers = num_moe_layers, .experts = num_experts, .devices = devices, .slots = 0}));
  return report;
}

}  // namespace switchyard
