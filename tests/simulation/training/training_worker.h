// A simulated training worker: it forms a group with the other ranks of its attempt, goes on from the newest
// checkpoint, takes steps with its peers, saves, stops as it is asked.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/jobs/training_assignment.h"
#include "tests/simulation/nodes/worker_process.h"
#include "tests/simulation/serving/serving_worker.h"
#include "tests/simulation/training/checkpoint_shelf.h"
#include "tests/simulation/training/memory_disk.h"

namespace switchyard::simulation {

class TrainingWorker final : public WorkerProcess {
 public:
  // Borrows all.  disk: full for checkpoints when it is full for the journal.
  TrainingWorker(World* world, ServerProcess* server, Identity identity, Fabrics* fabrics, CheckpointShelf* shelf,
                 const MemoryDisk* disk)
      : WorkerProcess(world, server, std::move(identity)), fabrics_(*fabrics), shelf_(*shelf), disk_(*disk) {}

 private:
  void Describe(fleet::WorkerInfo*) const override {}
  void Take(const v1::LinkResponse& message) override;
  void EndSession() override;

  void Begin(jobs::TrainingAssignment assignment);
  void Meet();
  void Start();
  void NextStep();
  void StepDone(int wish);
  // Returns false if the attempt has ended with that.
  bool Save();
  void End(jobs::TrainOutcome outcome, const absl::Status& status);
  void Leave();

  Fabrics& fabrics_;
  CheckpointShelf& shelf_;
  const MemoryDisk& disk_;
  jobs::TrainingAssignment attempt_;  // epoch 0: none
  uint64_t turn_ = 0;                 // counts attempts begun and left
  Fabric* fabric_ = nullptr;
  int64_t step_ = 0, saved_ = 0;
  int stop_ = 0;  // jobs::StopKind that was asked for
};

}  // namespace switchyard::simulation
