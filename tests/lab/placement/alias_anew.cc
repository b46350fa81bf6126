#include "tests/lab/placement/alias_anew.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/placement/lina/alias_placement.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard {
namespace {

// Largest first, each to the least loaded device that has less than its share of experts.
placement::Placement LargestFirst(const popularity::Popularity& popularity, int num_devices, int slots_per_device) {
  const int num_experts = static_cast<int>(popularity.size());
  placement::Placement placement{.num_experts = num_experts, .slots = {}};
  placement.slots.assign(num_devices, std::vector<int32_t>(slots_per_device, placement::kEmptySlot));
  std::vector<int32_t> order(num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return popularity[a] > popularity[b]; });
  std::vector<int64_t> loads(num_devices, 0);
  std::vector<int> held(num_devices, 0);
  const int share = (num_experts + num_devices - 1) / num_devices;
  for (const int32_t expert : order) {
    int best = -1;
    for (int d = 0; d < num_devices; ++d) {
      if (held[d] < share && (best < 0 || loads[d] < loads[best])) best = d;
    }
    placement.slots[best][held[best]++] = expert;
    loads[best] += popularity[expert];
  }
  return placement;
}

}  // namespace

absl::StatusOr<placement::Placement> AliasPlacement(absl::Span<const int64_t> estimate, const AliasShape& shape) {
  const auto num_slots = static_cast<int64_t>(shape.num_devices) * shape.slots_per_device;
  if (shape.num_devices < 1 || num_slots < static_cast<int64_t>(estimate.size())) {
    return absl::InvalidArgumentError(absl::StrCat("alias placement: ", shape.num_devices, " devices of ",
                                                   shape.slots_per_device, " slots for ", estimate.size(), " experts"));
  }
  const placement::Placement base = LargestFirst(popularity::ScaledTo(estimate, shape.num_devices * popularity::kRow),
                                                 shape.num_devices, shape.slots_per_device);
  return placement::FillEmptySlots(base, {}, {.estimate = estimate, .error = shape.error});
}

}  // namespace switchyard
