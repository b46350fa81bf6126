// A training job inside the server.  Plain values; proto/switchyard/v1/training.proto explains the fields that users
// see.
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
#include "scheduler/jobs/training_assignment.h"
#include "server/keys/roles.h"

namespace switchyard::server {

// "job-" and this many hex digits are an id.
inline constexpr size_t kJobIdDigits = 12;

struct StateChange {
  jobs::JobState state = jobs::JobState::kPending;
  int64_t unix_ms = 0;
  std::string reason;
};

struct Job {
  static constexpr size_t kMostChanges = 64;  // older ones are forgotten

  std::string id;          // also the name of its folder beneath the checkpoint root
  std::string request_id;  // empty: not given
  std::string owner;       // name of the key that submitted it; empty: the server had no keys
  jobs::JobSpec spec;
  std::optional<jobs::ForkOrigin> origin;  // unset: the job is no fork
  int32_t submitted_workers = 0;           // spec.workers before a resume first changed it; 0 = none has
  jobs::JobState state = jobs::JobState::kPending;
  int64_t attempt = 0;  // starts of its trainer so far; after a fork, also the parent's
  absl::Status error;   // why the job is FAILED, or was PAUSED by itself
  std::optional<jobs::TrainProgress> progress;
  std::optional<jobs::EvaluationResult> evaluation;       // the newest
  std::optional<jobs::SavedCheckpoint> checkpoint;        // the newest
  std::optional<jobs::EvaluationResult> best_evaluation;  // with the least loss
  std::optional<jobs::SavedCheckpoint> best_checkpoint;   // of it, with keep_best; that before it until it is complete
  std::vector<StateChange> changes;                       // the newest ones, oldest first
  int64_t created_unix_ms = 0;
  int64_t started_unix_ms = 0;  // first RUNNING; 0 = not yet
  int64_t ended_unix_ms = 0;    // 0 = not yet
  // Kept for the server alone:
  int64_t sequence = 0;   // order of submission; rises
  int64_t queued = 0;     // place in the queue while PENDING; the lowest is first
  int32_t losses = 0;     // attempts lost since the last progress
  int64_t best_step = 0;  // furthest step reached; progress is a step beyond it
  int64_t ran_ms = 0;     // time RUNNING in ended attempts, for max_runtime_seconds
  // Time since which a full disk blocks the job; 0 = none does.
  int64_t full_since_unix_ms = 0;
  int32_t files_ready = 0;  // packed outputs so far: datasets first, then evaluation
  std::string fork_digest;  // ForkRequest::digest; empty: the job is no fork
  // Not kept:
  int64_t most_tokens = 0;                        // highest token count since the server's start
  double seconds_left = 0;                        // expected; 0 = unknown
  std::string note;                               // what the job does or waits for, in words
  int64_t prepared_bytes = 0, prepare_bytes = 0;  // of text that is packed
};

// The job's steps in all; 0: they follow from its epochs, and no worker has reported them yet.
inline int64_t StepsOf(const Job& job) {
  return job.spec.steps > 0 || !job.progress.has_value() ? job.spec.steps : job.progress->total_steps;
}

}  // namespace switchyard::server
