// Alias placement (alias_placement.h) of all experts anew, wherever they are: the largest first, each to the least
// loaded device, then the slots that are empty.  Servers fill slots beside residents that stay.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard {

struct AliasShape {
  int num_devices = 0;
  int slots_per_device = 0;
  // Total-variation distance that the estimate is known to have from what comes, in 1 / kRow.
  int64_t error = 0;
};

// estimate [E] >= 0.  InvalidArgument: no devices, or fewer slots than experts.
absl::StatusOr<placement::Placement> AliasPlacement(absl::Span<const int64_t> estimate, const AliasShape& shape);

}  // namespace switchyard
