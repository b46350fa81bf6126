#include "scheduler/placement/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"

namespace switchyard::placement {

bool Placement::Holds(int device, int expert) const {
  return std::find(slots[device].begin(), slots[device].end(), expert) != slots[device].end();
}

std::vector<int32_t> Placement::DevicesOf(int expert) const {
  std::vector<int32_t> devices;
  for (int32_t device = 0; device < num_devices(); ++device) {
    if (Holds(device, expert)) devices.push_back(device);
  }
  return devices;
}

std::string Placement::ToString() const {
  return absl::StrJoin(slots, " ", [](std::string* out, const std::vector<int32_t>& device) {
    absl::StrAppend(out, "[",
                    absl::StrJoin(device, " ",
                                  [](std::string* to, int32_t expert) {
                                    absl::StrAppend(to, expert == kEmptySlot ? "-" : absl::StrCat(expert));
                                  }),
                    "]");
  });
}

absl::Status CheckPlacement(const Placement& placement) {
  std::vector<int> last_host(static_cast<size_t>(placement.num_experts), -1);
  for (int device = 0; device < placement.num_devices(); ++device) {
    for (const int32_t expert : placement.slots[device]) {
      if (expert == kEmptySlot) continue;
      if (expert < 0 || expert >= placement.num_experts) {
        return absl::InvalidArgumentError(absl::StrCat("placement: device ", device, " holds expert ", expert,
                                                       ", outside [0, ", placement.num_experts, ")"));
      }
      if (last_host[expert] == device) {
        return absl::InvalidArgumentError(
            absl::StrCat("placement: device ", device, " holds expert ", expert, " twice"));
      }
      last_host[expert] = device;
    }
  }
  const auto missing = std::find(last_host.begin(), last_host.end(), -1);
  if (missing == last_host.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("placement: no device holds expert ", missing - last_host.begin()));
}

Placement ContiguousPlacement(int num_experts, int num_devices, int spare_slots) {
  SY_CHECK_GE(num_experts, 1);
  SY_CHECK_GE(num_devices, 1);
  const int least = num_experts / num_devices, rest = num_experts % num_devices;
  Placement placement{.num_experts = num_experts, .slots = {}};
  placement.slots.assign(num_devices, std::vector<int32_t>(least + (rest > 0 ? 1 : 0) + spare_slots, kEmptySlot));
  int32_t expert = 0;
  for (int device = 0; device < num_devices; ++device) {
    const int count = least + (device < rest ? 1 : 0);
    for (int slot = 0; slot < count; ++slot) placement.slots[device][slot] = expert++;
  }
  return placement;
}

std::vector<SlotChange> ChangesBetween(const Placement& from, const Placement& to) {
  SY_CHECK_EQ(from.num_experts, to.num_experts);
  SY_CHECK_EQ(from.num_devices(), to.num_devices());
  std::vector<SlotChange> changes;
  for (int32_t device = 0; device < to.num_devices(); ++device) {
    SY_CHECK_EQ(from.slots[device].size(), to.slots[device].size());
    for (int32_t slot = 0; slot < static_cast<int32_t>(to.slots[device].size()); ++slot) {
      const int32_t expert = to.slots[device][slot];
      if (expert != from.slots[device][slot]) changes.push_back({device, slot, expert});
    }
  }
  return changes;
}

Placement KeepSlots(const Placement& from, Placement to) {
  SY_CHECK_EQ(from.num_devices(), to.num_devices());
  for (int device = 0; device < to.num_devices(); ++device) {
    const std::vector<int32_t>& before = from.slots[device];
    std::vector<int32_t>& now = to.slots[device];
    std::vector<int32_t> kept(now.size(), kEmptySlot), others;
    for (const int32_t expert : now) {
      if (expert == kEmptySlot) continue;
      const auto at = std::find(before.begin(), before.end(), expert);
      const auto slot = static_cast<size_t>(at - before.begin());
      if (at != before.end() && slot < kept.size()) {
        kept[slot] = expert;
      } else {
        others.push_back(expert);
      }
    }
    size_t next = 0;
    for (int32_t& slot : kept) {
      if (slot == kEmptySlot && next < others.size()) slot = others[next++];
    }
    now = std::move(kept);
  }
  return to;
}

}  // namespace switchyard::placement
