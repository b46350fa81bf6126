// How a job's attempt ends on a rank, and whether another attempt may do better.
//
// Pure.  A status that says nothing of it goes by its code; Lost and Failed say otherwise where the code alone misleads
// (a disk that is full may not be tomorrow, a model that does not fit into the memory will not).
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace switchyard {

enum class TrainOutcome : uint8_t {
  kFinished,  // all steps done, the last checkpoint counts
  kStopped,   // as it was asked to
  kLost,      // another attempt may do better: a peer, the network, the disk
  kFailed,    // another attempt would end likewise: the spec, the data, a loss that is not finite
};

struct TrainEnd {
  TrainOutcome outcome = TrainOutcome::kLost;
  absl::Status status = {};  // OK if it finished or stopped
};

// The same status, marked.  REQUIRES: not OK.
absl::Status Lost(absl::Status status);
absl::Status Failed(absl::Status status);
// kLost or kFailed.  REQUIRES: not OK.
TrainOutcome OutcomeOf(const absl::Status& status);

}  // namespace switchyard
