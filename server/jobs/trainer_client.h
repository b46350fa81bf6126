// A training worker as the job manager sees it: commands to it and reports from it.  Plain values; the gRPC form is in
// server/fleet/worker_service.h, tests use a fake.
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

// Commands to a worker that trains, perhaps beside serving.  Thread-safe; never blocks.  A broken link drops them, and
// OnTrainerLost follows.
class TrainerClient {
 public:
  virtual ~TrainerClient() = default;
  virtual void Start(const jobs::TrainingAssignment& assignment) = 0;
  virtual void StopTraining(int64_t epoch, jobs::StopKind kind) = 0;
  virtual void AbortTraining(int64_t epoch, const std::string& reason) = 0;
  // Ends the link: the worker sees `status`.  OnTrainerLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

struct TrainingStarted {
  int64_t step = 0;  // the attempt goes on from it
  std::vector<std::string> warnings = {};
};
// A worker's report on its attempt; a text is a note of what it is doing.
using TrainingReport = std::variant<TrainingStarted, jobs::TrainProgress, jobs::EvaluationResult, jobs::SavedCheckpoint,
                                    std::string, jobs::TrainEnd>;

// Receives what training workers say: of one link in order, OnTrainerLost once and last.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) = 0;
  virtual void OnTrainerHeartbeat(WorkerId id) = 0;
  virtual void OnTraining(WorkerId id, int64_t epoch, TrainingReport report) = 0;
  virtual void OnTrainerLost(WorkerId id, std::string reason) = 0;
};

}  // namespace switchyard::server
