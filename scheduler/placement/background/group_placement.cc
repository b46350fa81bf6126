#include "scheduler/placement/background/group_placement.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::placement {
namespace {

absl::Status CheckCosts(const MoveCosts& costs) {
  if (costs.copy_ps >= 0 && costs.row_ps >= 0 && costs.layer_ps >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("placement: costs must not be negative: copy_ps=", costs.copy_ps,
                                                 " row_ps=", costs.row_ps, " layer_ps=", costs.layer_ps));
}

absl::Status CheckMove(const ResidencyMove& move, bool arrival, const PlacementBounds& bounds) {
  const auto within = [](int32_t value, int limit) { return value >= 0 && value < limit; };
  if (within(move.layer, bounds.layers) && within(move.expert, bounds.experts) && within(move.device, bounds.devices) &&
      within(move.slot, bounds.slots)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("placement: ", arrival ? "arrival" : "departure", " of layer ", move.layer, ", expert ", move.expert,
                   ", device ", move.device, ", slot ", move.slot, ": limits are ", bounds.layers, " layers, ",
                   bounds.experts, " experts, ", bounds.devices, " devices, ", bounds.slots, " slots"));
}

}  // namespace

absl::Status CheckGroupPlacement(const GroupPlacement& placement, const PlacementBounds& bounds) {
  if (placement.epoch < 0) return absl::InvalidArgumentError(absl::StrCat("placement: epoch ", placement.epoch));
  RETURN_IF_ERROR(CheckCosts(placement.costs));
  if (placement.residents.empty()) return absl::OkStatus();
  if (static_cast<int>(placement.residents.size()) != bounds.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: ", placement.residents.size(), " layers, the model has ", bounds.layers));
  }
  for (size_t layer = 0; layer < placement.residents.size(); ++layer) {
    const Placement& one = placement.residents[layer];
    if (one.num_experts != bounds.experts || one.num_devices() != bounds.devices) {
      return absl::InvalidArgumentError(absl::StrCat("placement: layer ", layer, " has ", one.num_experts,
                                                     " experts on ", one.num_devices(), " devices, not ",
                                                     bounds.experts, " on ", bounds.devices));
    }
    for (const auto& slots : one.slots) {
      if (static_cast<int>(slots.size()) == bounds.slots) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("placement: layer ", layer, " has ", slots.size(), " slots a device, not ", bounds.slots));
    }
    if (const absl::Status status = CheckPlacement(one); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMigration(const Migration& migration, const PlacementBounds& bounds) {
  if (migration.epoch < 1)
    return absl::InvalidArgumentError(absl::StrCat("placement: epoch ", migration.epoch, " of a migration"));
  RETURN_IF_ERROR(CheckCosts(migration.costs));
  for (const ResidencyMove& move : migration.arrivals) RETURN_IF_ERROR(CheckMove(move, true, bounds));
  for (const ResidencyMove& move : migration.departures) RETURN_IF_ERROR(CheckMove(move, false, bounds));
  return absl::OkStatus();
}

}  // namespace switchyard::placement
