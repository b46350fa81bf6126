#include "scheduler/placement/route/layer_time.h"

#include <algorithm>
#include <vector>

namespace switchyard::placement {

int64_t LayerTime(const SplitTable& split, const LayerCosts& costs, absl::Span<const SlotChange> copies) {
  const auto num_experts = static_cast<size_t>(split.num_experts());
  const auto num_devices = static_cast<size_t>(split.num_ranks());
  std::vector<int64_t> rows(num_devices * num_experts, 0);
  for (int rank = 0; rank < split.num_ranks(); ++rank) {
    for (int expert = 0; expert < split.num_experts(); ++expert) {
      for (const SplitPiece& piece : split.Pieces(rank, expert)) {
        rows[static_cast<size_t>(piece.device) * num_experts + static_cast<size_t>(expert)] += piece.rows;
      }
    }
  }
  std::vector<int64_t> late(num_devices, 0), copying(num_devices, 0);
  for (const SlotChange& copy : copies) {
    if (copy.expert == kEmptySlot) continue;
    const auto device = static_cast<size_t>(copy.device);
    int64_t& of_expert = rows[device * num_experts + static_cast<size_t>(copy.expert)];
    late[device] += costs.OfExpert(of_expert);
    of_expert = 0;
    copying[device] += std::min(costs.copy_ps, LayerCosts::kMostOfExpert);
  }
  int64_t busiest = 0;
  for (size_t device = 0; device < num_devices; ++device) {
    int64_t time = 0;
    for (size_t expert = 0; expert < num_experts; ++expert) time += costs.OfExpert(rows[device * num_experts + expert]);
    if (late[device] > 0) time = std::max(time, copying[device]) + late[device];
    busiest = std::max(busiest, time);
  }
  return busiest;
}

}  // namespace switchyard::placement
