// How a job's attempt ends on a rank, and how it is asked to stop.  Plain data.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace switchyard::jobs {

// Both are requests: the ranks agree on the step.  The greater one wins.
enum class StopKind : int32_t { kNone, kSave, kNow };  // with a checkpoint of that step; without

enum class TrainOutcome : uint8_t {
  kFinished,  // all steps done, the last checkpoint counts
  kStopped,   // as it was asked to
  kLost,      // another attempt may do better: a peer, the network, the disk
  kFailed,    // another attempt would end likewise: the spec, the data, a loss that is not finite
  kBlocked,   // another attempt does better once somebody has put its files right: they have changed
};

struct TrainEnd {
  TrainOutcome outcome = TrainOutcome::kLost;
  absl::Status status = {};  // OK if it finished or stopped

  bool operator==(const TrainEnd& other) const = default;
};

}  // namespace switchyard::jobs
