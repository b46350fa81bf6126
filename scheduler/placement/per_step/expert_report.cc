#include "scheduler/placement/per_step/expert_report.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::placement {
namespace {

constexpr double kLongestCopies = 1e9;  // seconds

absl::Status CheckLayer(const Placement& placement, const std::vector<SlotOrigin>& origins,
                        const PlacementBounds& bounds) {
  if (placement.num_experts != bounds.experts || placement.num_devices() != bounds.devices) {
    return absl::InvalidArgumentError(absl::StrCat("has ", placement.num_experts, " experts on ",
                                                   placement.num_devices(), " devices, not ", bounds.experts, " on ",
                                                   bounds.devices));
  }
  RETURN_IF_ERROR(CheckPlacement(placement));
  size_t slots = 0;
  for (const std::vector<int32_t>& device : placement.slots) slots += device.size();
  if (origins.size() == slots) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has ", origins.size(), " origins of ", slots, " slots"));
}

}  // namespace

bool IsCopyTime(double seconds) { return seconds >= 0 && seconds < kLongestCopies; }

absl::Status CheckExpertReport(const ExpertReport& report, const PlacementBounds& bounds) {
  RETURN_IF_ERROR(popularity::CheckPredictorStats(report.predictor_stats, bounds.layers));
  if (report.copied_bytes < 0 || !IsCopyTime(report.copy_seconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat(report.copied_bytes, " bytes copied in ", report.copy_seconds, " s"));
  }
  if (report.placements.empty() && report.origins.empty()) return absl::OkStatus();
  const auto layers = static_cast<size_t>(bounds.layers);
  if (report.placements.size() != layers || report.origins.size() != layers) {
    return absl::InvalidArgumentError(absl::StrCat("placements of ", report.placements.size(),
                                                   " layers and origins of ", report.origins.size(), ", not of ",
                                                   layers));
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    const absl::Status status = CheckLayer(report.placements[layer], report.origins[layer], bounds);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("MoE layer ", layer, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::placement
