#include "workers/session/service_placement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

absl::StatusOr<MoveKind> KindOf(int kind) {
  switch (kind) {
    case v1::RESIDENCY_MOVE_KIND_COPY:
      return MoveKind::kCopy;
    case v1::RESIDENCY_MOVE_KIND_LOAD:
      return MoveKind::kLoad;
    case v1::RESIDENCY_MOVE_KIND_REHOME:
      return MoveKind::kRehome;
    case v1::RESIDENCY_MOVE_KIND_RELEASE:
      return MoveKind::kRelease;
    case v1::RESIDENCY_MOVE_KIND_OFFLOAD:
      return MoveKind::kOffload;
    default:
      return absl::InvalidArgumentError(absl::StrCat("placement: move of unknown kind ", kind));
  }
}

absl::StatusOr<std::vector<ResidencyMove>> FromProto(const v1::ResidencyMoves& message) {
  const int count = message.kinds_size();
  for (const int size : {message.layers_size(), message.experts_size(), message.devices_size(), message.slots_size()}) {
    if (size == count) continue;
    return absl::InvalidArgumentError(absl::StrCat("placement: moves with columns of ", count, " and ", size));
  }
  std::vector<ResidencyMove> moves(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const MoveKind kind, KindOf(message.kinds(i)));
    moves[i] = {kind, message.layers(i), message.experts(i), message.devices(i), message.slots(i)};
  }
  return moves;
}

MoveCosts FromProto(const v1::MoveCosts& message) {
  return {.copy_ps = message.copy_ps(), .row_ps = message.row_ps(), .layer_ps = message.layer_ps()};
}

absl::StatusOr<std::vector<bool>> OffloadedOf(const v1::LayerResidents& layer, int num_experts) {
  std::vector<bool> offloaded(static_cast<size_t>(std::max(0, num_experts)));
  for (const int32_t expert : layer.offloaded()) {
    if (expert < 0 || expert >= num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("placement: offloaded expert ", expert, ", the layer has ", num_experts));
    }
    offloaded[static_cast<size_t>(expert)] = true;
  }
  return offloaded;
}

}  // namespace

absl::StatusOr<PlacementSettings> FromProto(const v1::PlacementOptions& message) {
  PlacementSettings settings;
  if (!message.mode().empty()) {
    ASSIGN_OR_RETURN(settings.mode, ParsePlacementMode(message.mode()));
  }
  settings.spare_slots = message.spare_slots();
  settings.replica_slots = message.replica_slots();
  settings.rebalance_steps = message.rebalance_steps();
  RETURN_IF_ERROR(CheckPlacementSettings(settings));
  return settings;
}

absl::StatusOr<GroupPlacement> FromProto(const v1::GroupPlacement& message, int world) {
  GroupPlacement placement;
  placement.epoch = message.epoch();
  placement.costs = FromProto(message.costs());
  bool any_offloaded = false;
  for (const v1::LayerResidents& layer : message.layers()) {
    const int64_t slots = message.slots();
    if (slots < 1 || world < 1 || int64_t{layer.experts_size()} != world * slots) {
      return absl::InvalidArgumentError(absl::StrCat("placement: a layer of ", layer.experts_size(), " slots, not ",
                                                     slots, " on each of ", world, " devices"));
    }
    Placement residents{.num_experts = message.num_experts(), .slots = {}};
    for (auto at = layer.experts().begin(); at != layer.experts().end(); at += slots) {
      residents.slots.emplace_back(at, at + slots);
    }
    placement.residents.push_back(std::move(residents));
    ASSIGN_OR_RETURN(std::vector<bool> offloaded, OffloadedOf(layer, message.num_experts()));
    placement.offloaded.push_back(std::move(offloaded));
    any_offloaded |= layer.offloaded_size() > 0;
  }
  if (!any_offloaded) placement.offloaded.clear();
  return placement;
}

absl::StatusOr<PlacementStage> FromProto(const v1::PreparePlacement& message) {
  PlacementStage stage;
  stage.epoch = message.placement_epoch();
  stage.costs = FromProto(message.costs());
  ASSIGN_OR_RETURN(stage.arrivals, FromProto(message.arrivals()));
  ASSIGN_OR_RETURN(stage.departures, FromProto(message.departures()));
  return stage;
}

}  // namespace switchyard
