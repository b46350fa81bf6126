// How a job's attempt ends on a rank, and whether another attempt may do better.
//
// Pure.  A status that says nothing of it goes by its code; Lost, Failed and Blocked say otherwise where the code alone
// misleads (a disk that is full may not be tomorrow, a model that does not fit into the memory will not).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace switchyard {

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
};

// The same status, marked.  REQUIRES: not OK.
absl::Status Lost(absl::Status status);
absl::Status Failed(absl::Status status);
absl::Status Blocked(absl::Status status);
// The same, but OK stays OK.
absl::Status LostIfNot(const absl::Status& status);
// "where: message" with its code and its mark; OK stays OK.
absl::Status In(absl::string_view where, const absl::Status& status);
// kLost, kFailed or kBlocked.  REQUIRES: not OK.
TrainOutcome OutcomeOf(const absl::Status& status);

}  // namespace switchyard
