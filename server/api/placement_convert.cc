#include "server/api/placement_convert.h"

#include <string>
#include <vector>

namespace switchyard {
namespace {

v1::ResidencyMoveKind ToProto(MoveKind kind) {
  switch (kind) {
    case MoveKind::kCopy:
      return v1::RESIDENCY_MOVE_KIND_COPY;
    case MoveKind::kLoad:
      return v1::RESIDENCY_MOVE_KIND_LOAD;
    case MoveKind::kRehome:
      return v1::RESIDENCY_MOVE_KIND_REHOME;
    case MoveKind::kRelease:
      return v1::RESIDENCY_MOVE_KIND_RELEASE;
    case MoveKind::kOffload:
      return v1::RESIDENCY_MOVE_KIND_OFFLOAD;
  }
  return v1::RESIDENCY_MOVE_KIND_UNSPECIFIED;
}

void FillMoves(const std::vector<ResidencyMove>& moves, v1::ResidencyMoves* out) {
  for (auto* column : {out->mutable_kinds(), out->mutable_layers(), out->mutable_experts(), out->mutable_devices(),
                       out->mutable_slots()}) {
    column->Reserve(static_cast<int>(moves.size()));
  }
  for (const ResidencyMove& move : moves) {
    out->add_kinds(ToProto(move.kind));
    out->add_layers(move.layer);
    out->add_experts(move.expert);
    out->add_devices(move.device);
    out->add_slots(move.slot);
  }
}

void FillCosts(const MoveCosts& costs, v1::MoveCosts* out) {
  out->set_copy_ps(costs.copy_ps);
  out->set_row_ps(costs.row_ps);
  out->set_layer_ps(costs.layer_ps);
}

}  // namespace

v1::PlacementOptions ToProto(const PlacementSettings& settings) {
  v1::PlacementOptions message;
  message.set_mode(std::string(NameOf(settings.mode)));
  message.set_spare_slots(settings.spare_slots);
  message.set_replica_slots(settings.replica_slots);
  message.set_rebalance_steps(settings.rebalance_steps);
  return message;
}

v1::GroupPlacement ToProto(const GroupPlacement& placement) {
  v1::GroupPlacement message;
  message.set_epoch(placement.epoch);
  FillCosts(placement.costs, message.mutable_costs());
  for (size_t i = 0; i < placement.residents.size(); ++i) {
    const Placement& layer = placement.residents[i];
    message.set_num_experts(layer.num_experts);
    message.set_slots(static_cast<int32_t>(layer.slots[0].size()));
    v1::LayerResidents* residents = message.add_layers();
    for (const auto& device : layer.slots) residents->mutable_experts()->Add(device.begin(), device.end());
    for (int expert = 0; !placement.offloaded.empty() && expert < layer.num_experts; ++expert) {
      if (placement.offloaded[i][static_cast<size_t>(expert)]) residents->add_offloaded(expert);
    }
  }
  return message;
}

v1::PreparePlacement ToProto(const PlacementStage& stage, int64_t group_epoch) {
  v1::PreparePlacement message;
  message.set_group_epoch(group_epoch);
  message.set_placement_epoch(stage.epoch);
  FillMoves(stage.arrivals, message.mutable_arrivals());
  FillMoves(stage.departures, message.mutable_departures());
  FillCosts(stage.costs, message.mutable_costs());
  return message;
}

}  // namespace switchyard
