#include "proto/link/placement_codec.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

v1::PredictorStatsList ColumnsOf(const std::vector<popularity::PredictorStats>& stats) {
  v1::PredictorStatsList columns;
  for (const popularity::PredictorStats& entry : stats) {
    columns.add_layers(entry.layer);
    columns.add_phases(static_cast<int32_t>(entry.phase));
    columns.add_aheads(entry.ahead);
    columns.add_estimators(static_cast<int32_t>(entry.estimator));
    columns.add_batches(entry.batches);
    columns.add_accuracies(static_cast<float>(entry.accuracy));
    columns.add_distances(static_cast<float>(entry.distance));
    columns.add_used(entry.used);
  }
  return columns;
}

absl::StatusOr<std::vector<popularity::PredictorStats>> StatsOf(const v1::PredictorStatsList& columns) {
  const int count = columns.layers_size();
  for (const int size :
       {columns.phases_size(), columns.aheads_size(), columns.estimators_size(), columns.batches_size(),
        columns.accuracies_size(), columns.distances_size(), columns.used_size()}) {
    if (size == count) continue;
    return absl::InvalidArgumentError(absl::StrCat("estimators in columns of ", count, " and ", size));
  }
  std::vector<popularity::PredictorStats> stats(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int phase = columns.phases(i), estimator = columns.estimators(i);
    if (phase < 0 || phase > 1 || estimator < 0 || estimator >= popularity::kNumLivePredictors) {
      return absl::InvalidArgumentError(absl::StrCat("estimator ", estimator, " of phase ", phase, " is none"));
    }
    stats[static_cast<size_t>(i)] = {.layer = columns.layers(i),
                                     .phase = static_cast<popularity::Phase>(phase),
                                     .ahead = columns.aheads(i),
                                     .estimator = static_cast<popularity::LivePredictor>(estimator),
                                     .batches = columns.batches(i),
                                     .accuracy = columns.accuracies(i),
                                     .distance = columns.distances(i),
                                     .used = columns.used(i)};
  }
  return stats;
}

absl::Status AddLayer(const v1::LayerSlots& message, int num_experts, placement::ExpertReport* report) {
  placement::Placement& placement = report->placements.emplace_back();
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
  std::vector<placement::SlotOrigin>& origins = report->origins.emplace_back();
  for (const int32_t origin : message.origins()) {
    if (origin < 0 || origin >= placement::kNumSlotOrigins)
      return absl::InvalidArgumentError(absl::StrCat("slot origin ", origin, " is none"));
    origins.push_back(static_cast<placement::SlotOrigin>(origin));
  }
  return absl::OkStatus();
}

}  // namespace

v1::ExpertReport ToProto(const placement::ExpertReport& report, int64_t group_epoch) {
  v1::ExpertReport message;
  message.set_group_epoch(group_epoch);
  message.set_copied_bytes(report.copied_bytes);
  message.set_copy_seconds(report.copy_seconds);
  *message.mutable_predictor_stats() = ColumnsOf(report.predictor_stats);
  for (size_t layer = 0; layer < report.placements.size(); ++layer) {
    const placement::Placement& placement = report.placements[layer];
    message.set_num_experts(placement.num_experts);
    v1::LayerSlots* slots = message.add_layers();
    for (const std::vector<int32_t>& device : placement.slots) {
      slots->add_sizes(static_cast<int32_t>(device.size()));
      slots->mutable_experts()->Add(device.begin(), device.end());
    }
    for (const placement::SlotOrigin origin : report.origins[layer]) slots->add_origins(static_cast<int32_t>(origin));
  }
  return message;
}

absl::StatusOr<placement::ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers,
                                                  int num_experts) {
  placement::ExpertReport report;
  ASSIGN_OR_RETURN(report.predictor_stats, StatsOf(message.predictor_stats()));
  for (const v1::LayerSlots& layer : message.layers()) {
    RETURN_IF_ERROR(AddLayer(layer, message.num_experts(), &report));
  }
  if (placement::IsCopyTime(message.copy_seconds())) {
    report.copied_bytes = message.copied_bytes();
    report.copy_seconds = message.copy_seconds();
  }
  const int devices = report.placements.empty() ? 0 : report.placements.front().num_devices();
  RETURN_IF_ERROR(
      placement::CheckExpertReport(report, {.layers = num_moe_layers, .experts = num_experts, .devices = devices}));
  return report;
}

}  // namespace switchyard::link
