// One training worker, as the job manager sees it: what it can be told, and what it tells.  Plain values; the gRPC form
// is server/fleet/worker_service.h, tests use a fake.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/fleet/worker_client.h"
#include "server/jobs/job.h"

namespace switchyard {

struct TrainData {
  bool of_job = false;  // made for the job, in its folder beneath the checkpoint root; else of the dataset root
  std::string name;     // .bin, relative to that
};

// A worker's seat in a job's attempt.
struct TrainingSeat {
  int64_t epoch = 0;
  int64_t attempt = 0;
  std::string job_id;
  JobSpec spec;
  std::vector<TrainData> data;
  std::vector<TrainData> evaluation;
  int rank = 0;
  int world = 1;
  std::string store_token;
  int64_t form_deadline_ms = 0;
  std::string reach;  // a member's address that is not loopback; empty if there is none
};

enum class StopMode : uint8_t {
  kSave,  // at a step, with a checkpoint of it
  kNow,   // at a step, without
};

enum class TrainingOutcome : uint8_t { kFinished, kStopped, kLost, kFailed, kBlocked };  // train_link.proto

struct TrainingEnd {
  TrainingOutcome outcome = TrainingOutcome::kLost;
  absl::Status status;  // of kLost, kFailed and kBlocked
};

// Commands to a worker that trains, perhaps beside serving.  Thread-safe, never blocks; those of a broken link are
// dropped, OnTrainerLost tells.
class TrainerClient {
 public:
  virtual ~TrainerClient() = default;
  virtual void Start(const TrainingSeat& seat) = 0;
  virtual void StopTraining(int64_t epoch, StopMode kind) = 0;
  virtual void AbortTraining(int64_t epoch, const std::string& reason) = 0;
  // Ends the link: the worker sees `status`.  OnTrainerLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

// What training workers tell.  Of one link in order; OnTrainerLost once, last.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, WorkerInfo info) = 0;
  virtual void OnTrainerHeartbeat(WorkerId id) = 0;
  virtual void OnTrainingStarted(WorkerId id, int64_t epoch, int64_t step, std::vector<std::string> warnings) = 0;
  virtual void OnTrainingStep(WorkerId id, int64_t epoch, TrainProgress progress) = 0;
  virtual void OnTrainingEvaluated(WorkerId id, int64_t epoch, EvaluationResult result) = 0;
  virtual void OnTrainingSaved(WorkerId id, int64_t epoch, SavedCheckpoint checkpoint) = 0;
  virtual void OnTrainingNote(WorkerId id, int64_t epoch, std::string text) = 0;
  virtual void OnTrainingEnded(WorkerId id, int64_t epoch, TrainingEnd end) = 0;
  virtual void OnTrainerLost(WorkerId id, std::string reason) = 0;
};

}  // namespace switchyard
