// One seed: a server, its workers and its clients under faults, until all is quiet again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/core/world.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/serving/client.h"
#include "tests/simulation/serving/serving_worker.h"
#include "tests/simulation/training/job_server.h"
#include "tests/simulation/training/job_user.h"
#include "tests/simulation/training/training_worker.h"

namespace switchyard::simulation {

struct Outcome {
  std::string violation;  // empty: none
  uint64_t hash = 0;      // of the history
  absl::Duration virtual_time;
};

// Runs a seed.  trace: prints its history.
Outcome RunSeed(uint64_t seed, bool trace, const ServerProcess::Shared& shared);

class Simulation {
 public:
  Simulation(uint64_t seed, bool trace, const ServerProcess::Shared& shared);
  Outcome Run();

 private:
  void Start();
  void Watch();
  void CheckReadiness();
  bool IsQuiet() const;
  void Probe();
  void RunUntil(absl::Duration end, bool until_quiet);
  void CheckLeaks();
  void AddTrainers();

  World world_;
  Scenario scenario_;
  MemoryDisk disk_;
  JobServer server_;
  Fabrics fabrics_;
  CheckpointShelf shelf_;
  std::vector<std::unique_ptr<ServingWorker>> workers_;
  std::vector<std::unique_ptr<TrainingWorker>> trainers_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<JobUser>> users_;
  Faults faults_;
  size_t arrived_ = 0;  // clients and users that have begun
  absl::Time server_ran_since_ = absl::InfinitePast();
};

}  // namespace switchyard::simulation
