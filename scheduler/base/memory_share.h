// What a flag says of memory: a share of a whole, or bytes.  Plain data.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard {

struct MemoryShare {
  double percent = 0;  // in (0, 100]; 0: `bytes` says it
  int64_t bytes = 0;   // at least 1

  // How many parts of part_bytes each, of `whole` parts: at most all; a share is rounded up.
  int64_t PartsOf(int64_t whole, int64_t part_bytes) const;
  bool operator==(const MemoryShare& other) const = default;
};

// "25%", "12.5%" or bytes, "8000000000".  InvalidArgument: anything else, with what it must be.
absl::StatusOr<MemoryShare> ParseMemoryShare(absl::string_view text);

}  // namespace switchyard
