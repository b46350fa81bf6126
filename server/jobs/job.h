// A training job as the server knows it.  Plain values; proto/switchyard/v1/training.proto has the API's forms and says
// what each number is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/job_state.h"
#include "scheduler/jobs/train_progress.h"

namespace switchyard::server {

struct StateChange {
  jobs::JobState state = jobs::JobState::kPending;
  int64_t unix_ms = 0;
  std::string reason;
};

struct Job {
  static constexpr size_t kMostChanges = 64;  // older ones are forgotten

  std::string id;          // also the name of its folder beneath the checkpoint root
  std::string request_id;  // empty: none was given
  jobs::JobSpec spec;
  int32_t submitted_workers = 0;  // spec.workers before a resume first changed it; 0 = none has
  jobs::JobState state = jobs::JobState::kPending;
  int64_t attempt = 0;  // starts of its trainer so far
  absl::Status error;   // of a FAILED one, and of one that was PAUSED by it
  std::optional<jobs::TrainProgress> progress;
  std::optional<jobs::EvaluationResult> evaluation;  // the last one
  std::optional<jobs::SavedCheckpoint> checkpoint;   // the newest
  std::vector<StateChange> changes;                  // the last ones, oldest first
  int64_t created_unix_ms = 0;
  int64_t started_unix_ms = 0;  // first RUNNING; 0 = not yet
  int64_t ended_unix_ms = 0;    // 0 = not yet
  // Kept for the server alone:
  int64_t sequence = 0;   // of submission; rises
  int64_t queued = 0;     // its place in the queue while it is PENDING: the lowest is the first
  int32_t losses = 0;     // attempts lost since it last got ahead
  int64_t best_step = 0;  // the furthest that was reached: what getting ahead is measured by
  int64_t ran_ms = 0;     // time RUNNING of ended attempts: what max_runtime_seconds limits
  // A full disk holds it up since then, as far as anybody has seen; 0 = none does.
  int64_t full_since_unix_ms = 0;
  int32_t files_ready = 0;  // of its text files, datasets before evaluation, so many are packed
  // Not kept:
  int64_t most_tokens = 0;                        // that it has reached since the server's start
  double seconds_left = 0;                        // expected; 0 = unknown
  std::string note;                               // what it is doing or waiting for, in words
  int64_t prepared_bytes = 0, prepare_bytes = 0;  // of text that becomes tokens
};

}  // namespace switchyard::server
