#include "scheduler/placement/route/slot_origins.h"

namespace switchyard {

absl::string_view NameOf(SlotOrigin origin) {
  constexpr absl::string_view kNames[kNumSlotOrigins] = {"start", "estimate", "gate"};
  return kNames[static_cast<size_t>(origin)];
}

void SlotOrigins::Changed(int layer, absl::Span<const SlotChange> changes, SlotOrigin origin) {
  for (const SlotChange& change : changes) {
    if (change.expert != kEmptySlot) origins_[Index(layer, change.device, change.expert)] = origin;
  }
}

}  // namespace switchyard
