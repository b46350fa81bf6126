// Maps a status to the outcome of a job's attempt on a rank: whether another attempt may succeed.  Pure.
//
// The code decides; Lost, Failed and Blocked mark a status if its code misleads (a full disk may have room tomorrow, a
// model that does not fit into the memory never will).
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/training_assignment.h"

namespace switchyard::train {

// The same status, marked.  REQUIRES: not OK.
absl::Status Lost(absl::Status status);
absl::Status Failed(absl::Status status);
absl::Status Blocked(absl::Status status);
// The same, but OK stays OK.
absl::Status LostIfNot(const absl::Status& status);
// "where: message" with its code and its mark; OK stays OK.
absl::Status In(absl::string_view where, const absl::Status& status);
template <class Value>
absl::StatusOr<Value> In(absl::string_view where, absl::StatusOr<Value> value) {
  if (value.ok()) return value;
  return In(where, value.status());
}
// kLost, kFailed or kBlocked.  REQUIRES: not OK.
jobs::TrainOutcome OutcomeOf(const absl::Status& status);

}  // namespace switchyard::train
