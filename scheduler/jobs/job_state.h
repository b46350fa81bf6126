// The life of a training job: which states there are and what moves it from one to another, as a table.  Pure.
//
//   PENDING ──admit──► PREPARING ──start──► RUNNING ──finish──► SUCCEEDED
//                                              │ ▲
//                                        pause │ │ admit … start
//                                              ▼ │
//                                           PAUSING ──stopped──► PAUSED ──resume──► PENDING
//
// A job waits for workers (PENDING), prepares its data (PREPARING: text becomes tokens), and runs.  Its data may be
// prepared while it waits; then it is PENDING again (`lose`).  PAUSING and CANCELLING last until its workers have
// stopped at a step with a checkpoint.  A job that cannot go on until a user has repaired something (its data, the
// disk) pauses by itself (`block`).  A job that loses its workers or its server waits again, as another attempt, unless
// it has failed too often (the caller counts).  SUCCEEDED, FAILED, CANCELLED are final.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jobs {

enum class JobState : uint8_t {
  kPending,
  kPreparing,
  kRunning,
  kPausing,
  kPaused,
  kCancelling,
  kSucceeded,
  kFailed,
  kCancelled,
};
inline constexpr int kNumJobStates = 9;

enum class JobEvent : uint8_t {
  kAdmit,    // there are workers for it, and it is the first in the queue; or its data is prepared while it waits
  kStart,    // its data is ready and its workers have formed a group
  kPause,    // by a user
  kResume,   // by a user
  kCancel,   // by a user
  kStopped,  // its workers have stopped as they were asked to
  kLose,     // its workers are gone, or the server was: it may try again; or its data is prepared, and it waits
  kFinish,   // its last step is done and its last checkpoint is written
  kFail,     // an error that trying again does not repair
  kBlock,    // an error that a user may repair: it waits for that
};
inline constexpr int kNumJobEvents = 10;

absl::string_view JobStateName(JobState state);  // "PENDING"
absl::string_view JobEventName(JobEvent event);  // "pause"
bool IsFinal(JobState state);

// Returns the state that follows.  FailedPrecondition "job is SUCCEEDED: cannot pause" where nothing does.
absl::StatusOr<JobState> NextJobState(JobState state, JobEvent event);

// How the error of a trainer begins whose loss or gradient is infinite or not a number: DataLoss.  Servers count those.
inline constexpr char kNotFinite[] = "loss is not finite";
bool SaysNotFinite(const absl::Status& error);

}  // namespace switchyard::jobs
