#include "workers/moe/dispatch/device_expert_layout.h"

#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {

absl::StatusOr<DeviceExpertLayout> DeviceExpertLayout::Make(const Stream& stream, const ExpertLayout& layout,
                                                            int rank) {
  DeviceExpertLayout made;
  made.layout_ = layout;
  made.rank_ = rank;
  const int experts = layout.num_experts();
  std::vector<int32_t> offsets = {0}, slot_here(experts, -1), places;
  for (int expert = 0; expert < experts; ++expert) {
    for (const ExpertLayout::Place& place : layout.Places(expert)) {
      places.insert(places.end(), {place.rank, place.slot});
      if (place.rank == rank) slot_here[expert] = place.slot;
    }
    offsets.push_back(static_cast<int32_t>(places.size() / 2));
    made.slots_are_experts_ = (expert == 0 || made.slots_are_experts_) && slot_here[expert] == expert;
  }
  made.num_places_ = offsets.back();
  std::vector<int32_t> numbers = offsets;
  numbers.insert(numbers.end(), slot_here.begin(), slot_here.end());
  numbers.insert(numbers.end(), places.begin(), places.end());
  const TensorView on_host(numbers.data(), DType::kI32, {static_cast<int64_t>(numbers.size())});
  ASSIGN_OR_RETURN(made.numbers_, CopyToDevice(stream, on_host));
  return made;
}

ops::PlaceTable DeviceExpertLayout::view() const {
  const int64_t experts = layout_.num_experts();
  const IntView numbers(numbers_.view());
  return {.place_offsets = numbers.Part(0, experts + 1),
          .places = numbers.Part(2 * experts + 1, 2 * num_places_),
          .slot_here = numbers.Part(experts + 1, experts),
          .rank = rank_};
}

}  // namespace switchyard::moe
