// The weather: draws faults and lets them happen, alone and together, at random times and just when a group forms.
#pragma once

#include <vector>

#include "tests/simulation/nodes/worker_process.h"
#include "tests/simulation/training/job_server.h"

namespace switchyard::simulation {

class Faults {
 public:
  // Borrows all.
  Faults(World* world, JobServer* server, MemoryDisk* disk, absl::Duration step_timeout)
      : world_(*world), server_(*server), disk_(*disk), step_timeout_(step_timeout) {}
  void AddWorker(WorkerProcess* worker) { workers_.push_back(worker); }

  // Draws `count` faults before `end`, some of them together.
  void Draw(int count, absl::Duration end);
  // `count` more faults, each while a group forms.
  void DrawForming(int count) { forming_ = count; }
  void OnForming();
  // Nothing fails from now on; what is stopped goes on.
  void Heal();
  // Starts a server that has ended, after a moment.
  void StartServer(absl::Duration pause);
  // How many losses so far may have been the work of a request, for all that the server knows: at most so many.
  int num_suspicious() const { return suspicious_; }
  bool healed() const { return healed_; }

 private:
  void Strike();
  int MostSuspicious(int64_t kind, absl::Duration time, const WorkerProcess& worker) const;
  void StrikeWorker(WorkerProcess* worker);
  void StrikeServer();
  void StrikeDisk();
  void LosePower();
  void StopFor(Process* process, absl::Duration time);

  World& world_;
  JobServer& server_;
  MemoryDisk& disk_;
  const absl::Duration step_timeout_;
  std::vector<WorkerProcess*> workers_;
  int forming_ = 0, suspicious_ = 0;
  bool healed_ = false;
};

}  // namespace switchyard::simulation
