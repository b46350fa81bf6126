// An attempt at a job on one worker: what it trains, on what and as which rank, and how the attempt ends.  Plain data;
// proto/link/training_assignment_codec.h is its form on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::jobs {

// A file of packed tokens, beneath one of two roots.
struct TrainFile {
  bool of_job = false;    // made for the job, in its folder beneath the checkpoint root; else beneath the dataset root
  std::string name = {};  // .bin, relative to that
  int32_t set = 0;        // of evaluation: the index of its set among EvaluationSetsOf

  bool operator==(const TrainFile& other) const = default;
};

// Where a forked job comes from: its folder begins with this checkpoint, which another job has saved.
struct ForkOrigin {
  std::string job;
  int64_t step = 0;
  int64_t attempts = 0;           // of the parent; the fork's own have the numbers after them
  bool other_data = false;        // the data begin at their first sequence, not where the parent was
  int64_t skipped_sequences = 0;  // passed over at the fork

  bool operator==(const ForkOrigin& other) const = default;
};

struct TrainingAssignment {
  int64_t epoch = 0;    // of the group; never reused
  int64_t attempt = 0;  // of the job, rising: fences checkpoints
  std::string job_id;   // also the name of its folder beneath the checkpoint root
  JobSpec spec;
  std::vector<TrainFile> data;
  std::vector<TrainFile> evaluation;
  int rank = 0;
  int world = 1;
  std::string store_token;  // the group's secret
  int64_t form_deadline_ms = 0;
  std::string reach;           // a member's address that is not loopback; empty if there is none
  bool encrypt_links = false;  // TLS between the ranks
  std::optional<ForkOrigin> origin = {};

  bool operator==(const TrainingAssignment& other) const = default;
};

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
  std::string note = {};     // why it finished before its last step; "" = it did all of them

  bool operator==(const TrainEnd& other) const = default;
};

}  // namespace switchyard::jobs
