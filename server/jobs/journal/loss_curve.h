// Reads a loss log's curve from a CSV that LossLog has written, also while it writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

struct LossPoint {
  int64_t step = 0;
  double loss = 0;
  bool operator==(const LossPoint&) const = default;
};

// Returns at most `most` (>= 2) points of file `name`, whose first columns are step and loss, by rising step: all rows
// of a small file; of a large one rows at equal distances, so that the work does not grow with the file.  The last
// whole row is always there; rows without a loss are not.  Empty: there is no such file yet.  Waits for the disk.
absl::StatusOr<std::vector<LossPoint>> ReadLossCurve(const RootDir& root, const std::string& name, int most);

}  // namespace switchyard::server
