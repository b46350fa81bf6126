// The times that a decision about copying experts compares.  The server measures them and puts them into each step's
// plan, so that all ranks have the same.
#pragma once

#include <cstdint>

namespace switchyard::placement {

struct MoveCosts {
  int64_t copy_ps = 0;  // to copy one expert into a slot; a device copies one after the other, devices at the same time
  int64_t row_ps = 0;   // that one row more makes the busiest device later: compute and exchange
  int64_t layer_ps = 0;  // that pass anyway between the decisions of one layer and the next
  bool operator==(const MoveCosts& other) const = default;
};

}  // namespace switchyard::placement
