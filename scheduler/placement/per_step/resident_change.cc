#include "scheduler/placement/per_step/resident_change.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::placement {
namespace {

// A device's slots of a layer: residents and transient ones apart.
struct DeviceSlots {
  struct Transient {
    int32_t expert = kEmptySlot;
    int64_t in_flight = -1;
  };
  std::vector<int32_t> residents;
  std::vector<Transient> transients;
};

absl::Status Refuse(const ResidencyMove& move, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("placement migration: expert ", move.expert, " of MoE layer ",
                                                 move.layer, " on rank ", move.device, ": ", why));
}

absl::Status CheckMove(const ResidencyMove& move, absl::Span<const Placement> residents) {
  if (move.layer < 0 || move.layer >= static_cast<int>(residents.size())) return Refuse(move, "there is no such layer");
  const Placement& layer = residents[static_cast<size_t>(move.layer)];
  if (move.device < 0 || move.device >= layer.num_devices()) return Refuse(move, "there is no such rank");
  if (move.expert < 0 || move.expert >= layer.num_experts) return Refuse(move, "there is no such expert");
  return absl::OkStatus();
}

std::vector<DeviceSlots> Apart(const Placement& residents, const SlotTable& table) {
  std::vector<DeviceSlots> devices(residents.slots.size());
  for (size_t device = 0; device < devices.size(); ++device) {
    devices[device].residents.reserve(residents.slots[device].size() + 1);  // room for an arrival
    for (size_t slot = 0; slot < residents.slots[device].size(); ++slot) {
      const int32_t expert = residents.slots[device][slot];
      if (expert != kEmptySlot) {
        devices[device].residents.push_back(expert);
      } else {
        devices[device].transients.push_back({table.placement().slots[device][slot], table.in_flight()[device][slot]});
      }
    }
  }
  return devices;
}

absl::Status Depart(const ResidencyMove& move, DeviceSlots* device) {
  const auto at = std::find(device->residents.begin(), device->residents.end(), move.expert);
  if (at == device->residents.end()) return Refuse(move, "departs, but is not resident there");
  device->residents.erase(at);
  return absl::OkStatus();
}

absl::Status Arrive(const ResidencyMove& move, DeviceSlots* device) {
  if (std::find(device->residents.begin(), device->residents.end(), move.expert) != device->residents.end()) {
    return Refuse(move, "arrives, but is resident there already");
  }
  device->residents.push_back(move.expert);
  for (DeviceSlots::Transient& transient : device->transients) {
    if (transient.expert == move.expert) transient = {};
  }
  return absl::OkStatus();
}

absl::StatusOr<ResidentChange> Together(int layer, int num_experts, const std::vector<DeviceSlots>& devices) {
  ResidentChange change{.layer = layer, .residents = {.num_experts = num_experts, .slots = {}}, .table = {}};
  Placement placement = change.residents;
  std::vector<std::vector<int64_t>> in_flight;
  change.residents.slots.reserve(devices.size());
  placement.slots.reserve(devices.size());
  in_flight.reserve(devices.size());
  for (const DeviceSlots& device : devices) {
    const size_t num_residents = device.residents.size(), num_slots = num_residents + device.transients.size();
    std::vector<int32_t>& kept = change.residents.slots.emplace_back(num_slots, kEmptySlot);
    std::copy(device.residents.begin(), device.residents.end(), kept.begin());
    std::vector<int32_t>& held = placement.slots.emplace_back(kept);
    std::vector<int64_t>& coming = in_flight.emplace_back(num_slots, -1);
    for (size_t i = 0; i < device.transients.size(); ++i) {
      held[num_residents + i] = device.transients[i].expert;
      coming[num_residents + i] = device.transients[i].in_flight;
    }
  }
  if (const absl::Status status = CheckPlacement(change.residents); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("placement migration: MoE layer ", layer, ": ", status.message()));
  }
  change.table = SlotTable(std::move(placement), std::move(in_flight));
  return change;
}

}  // namespace

Placement WithTransientSlots(const Placement& residents, int transient_slots) {
  Placement slots = residents;
  for (std::vector<int32_t>& device : slots.slots) {
    std::erase(device, kEmptySlot);
    device.resize(device.size() + static_cast<size_t>(transient_slots), kEmptySlot);
  }
  return slots;
}

absl::StatusOr<std::vector<ResidentChange>> ChangeResidents(const ResidencyMigration& migration,
                                                            absl::Span<const Placement> residents,
                                                            absl::Span<const SlotTable> tables) {
  std::map<int, std::vector<DeviceSlots>> layers;  // that the migration changes
  const auto device_of = [&](const ResidencyMove& move) {
    const auto layer = static_cast<size_t>(move.layer);
    const auto [it, is_new] = layers.try_emplace(move.layer);
    if (is_new) it->second = Apart(residents[layer], tables[layer]);
    return &it->second[static_cast<size_t>(move.device)];
  };
  std::set<std::array<int32_t, 3>> departed;  // layer, expert, device
  for (const ResidencyMove& move : migration.departures) {
    RETURN_IF_ERROR(CheckMove(move, residents));
    RETURN_IF_ERROR(Depart(move, device_of(move)));
    departed.insert({move.layer, move.expert, move.device});
  }
  for (const ResidencyMove& move : migration.arrivals) {
    RETURN_IF_ERROR(CheckMove(move, residents));
    if (departed.contains({move.layer, move.expert, move.device})) {
      return absl::InvalidArgumentError(absl::StrCat("placement migration: expert ", move.expert, " of layer ",
                                                     move.layer, " departs from device ", move.device,
                                                     " and arrives there"));
    }
    RETURN_IF_ERROR(Arrive(move, device_of(move)));
  }
  std::vector<ResidentChange> changes;
  for (const auto& [layer, devices] : layers) {
    ASSIGN_OR_RETURN(ResidentChange change,
                     Together(layer, residents[static_cast<size_t>(layer)].num_experts, devices));
    changes.push_back(std::move(change));
  }
  return changes;
}

}  // namespace switchyard::placement
