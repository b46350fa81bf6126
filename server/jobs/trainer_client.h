// Interfaces between the job manager and a training worker: commands to it and reports from it.  Plain values;
// server/fleet/link_client.h and worker_service.h implement them over gRPC, tests use a fake.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/jobs/train_progress.h"
#include "scheduler/jobs/training_assignment.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

// Commands to a worker that trains and perhaps also serves.  Thread-safe; never blocks.  A broken link drops commands,
// and OnTrainerLost follows.
class TrainerClient {
 public:
  virtual ~TrainerClient() = default;
  virtual void Start(const jobs::TrainingAssignment& assignment) = 0;
  virtual void StopTraining(int64_t epoch, jobs::StopKind kind) = 0;
  virtual void AbortTraining(int64_t epoch, const std::string& reason) = 0;
  // Ends the link; the worker receives `status`.  OnTrainerLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

struct TrainingStarted {
  int64_t step = 0;  // from which the attempt goes on
  std::vector<std::string> warnings = {};
};
// A worker's report on its attempt; a text is a note about what it is doing.
using TrainingReport = std::variant<TrainingStarted, jobs::TrainProgress, jobs::EvaluationReport, jobs::SavedCheckpoint,
                                    std::string, jobs::TrainEnd>;

// Receives the reports of training workers: those of one link in order, OnTrainerLost once and last.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) = 0;
  virtual void OnTrainerHeartbeat(WorkerId id) = 0;
  virtual void OnTraining(WorkerId id, int64_t epoch, TrainingReport report) = 0;
  virtual void OnTrainerLost(WorkerId id, std::string reason) = 0;
};

}  // namespace switchyard::server
