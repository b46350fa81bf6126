// Measures the links of a group: how long its all-to-alls take by their bytes, as a line (fleet::LinkFit).
//
// Every rank sends as many bytes to each other, kLinkRepeats times, then four times as many, and so on until that takes
// kLongEnoughLink, or kMostLinkBytes; on a slow link some tenths of a second in all.  Of each size the median counts,
// of the times of the slowest rank.  The line goes through the shortest and the longest: many links let some bytes pass
// at once after a pause, which would tilt any line through what lies between.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/fleet/group_ready.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

inline constexpr int kLinkRepeats = 5;
inline constexpr int64_t kLeastLinkBytes = 256, kMostLinkBytes = int64_t{1} << 20;  // to each other rank
inline constexpr absl::Duration kLongEnoughLink = absl::Milliseconds(20);

struct LinkSample {
  double bytes = 0, seconds = 0;  // > 0
};

// samples: from the fewest bytes to the most.  Not measured (LinkFit::measured) unless there are three and the last
// takes longer.
fleet::LinkFit FitLinks(absl::Span<const LinkSample> samples);

// Collective, on the CPU; on a group of one not measured.  Errors are the communicator's.
absl::StatusOr<fleet::LinkFit> MeasureLinks(Communicator* comm, absl::Time deadline);

}  // namespace switchyard::comm
