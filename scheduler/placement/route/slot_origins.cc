#include "scheduler/placement/route/slot_origins.h"

namespace switchyard::placement {

void SlotOrigins::Changed(int layer, absl::Span<const SlotChange> changes, SlotOrigin origin) {
  for (const SlotChange& change : changes) {
    if (change.expert != kEmptySlot) origins_[Index(layer, change.device, change.expert)] = origin;
  }
}

}  // namespace switchyard::placement
