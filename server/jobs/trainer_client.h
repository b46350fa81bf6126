// One training worker, as the job manager sees it: what it can be told, and what it reports.  Plain values; the gRPC
// form is server/fleet/worker_service.h, tests use a fake.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/jobs/train_progress.h"
#include "scheduler/jobs/training_seat.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

// Commands to a worker that trains, perhaps beside serving.  Thread-safe, never blocks; those of a broken link are
// dropped, OnTrainerLost tells.
class TrainerClient {
 public:
  virtual ~TrainerClient() = default;
  virtual void Start(const jobs::TrainingAssignment& assignment) = 0;
  virtual void StopTraining(int64_t epoch, jobs::StopKind kind) = 0;
  virtual void AbortTraining(int64_t epoch, const std::string& reason) = 0;
  // Ends the link: the worker sees `status`.  OnTrainerLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

// What training workers tell.  Of one link in order; OnTrainerLost once, last.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) = 0;
  virtual void OnTrainerHeartbeat(WorkerId id) = 0;
  virtual void OnTrainingStarted(WorkerId id, int64_t epoch, int64_t step, std::vector<std::string> warnings) = 0;
  virtual void OnTrainingStep(WorkerId id, int64_t epoch, jobs::TrainProgress progress) = 0;
  virtual void OnTrainingEvaluated(WorkerId id, int64_t epoch, jobs::EvaluationResult result) = 0;
  virtual void OnTrainingSaved(WorkerId id, int64_t epoch, jobs::SavedCheckpoint checkpoint) = 0;
  virtual void OnTrainingNote(WorkerId id, int64_t epoch, std::string text) = 0;
  virtual void OnTrainingEnded(WorkerId id, int64_t epoch, jobs::TrainEnd end) = 0;
  virtual void OnTrainerLost(WorkerId id, std::string reason) = 0;
};

}  // namespace switchyard::server
