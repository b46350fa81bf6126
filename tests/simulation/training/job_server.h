// The server's process with its jobs: the job manager and its journal (SQLite on a simulated disk) as they are in
// production, driven by the world's events; the host around them is simulated.
//
// The thread of the jobs runs what is posted in order, and ticks.  Packing takes time on a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/jobs/job_manager.h"
#include "server/jobs/journal/job_store.h"
#include "tests/simulation/nodes/server_process.h"
#include "tests/simulation/training/memory_disk.h"

namespace switchyard::simulation {

class JobServer final : public ServerProcess, private server::TrainingHost, private server::TrainerEvents {
 public:
  using Task = std::function<void(server::JobManager&)>;
  // disk: null if this server has no jobs.
  JobServer(World* world, server::ServerConfig config, Shared shared, server::JobManager::Options options,
            MemoryDisk* disk)
      : ServerProcess(world, std::move(config), shared), options_(std::move(options)), disk_(disk) {}
  ~JobServer() override { DropJobs(); }

  // Runs the task on the thread of the jobs.  REQUIRES: has_jobs().
  void PostJob(Task task);
  bool has_jobs() const { return manager_ != nullptr; }
  // The power goes with the next death.
  void LosePower() { loses_power_ = true; }
  // The wall clock jumps.
  void JumpClock(absl::Duration by) { wall_ += by; }

 private:
  server::TrainerEvents* OpenJobs() override;
  void DropJobs() override;
  void RunJobs();
  void Tick();

  // --- TrainingHost ---
  absl::Time Now() override { return world_.now(); }
  int64_t UnixMs() override { return absl::ToUnixMillis(world_.now() + wall_); }
  std::string DrawHex() override;
  void OpenStore(const std::string& token) override { store()->Open(token); }
  void CloseStore(const std::string& token) override { store()->Close(token); }
  void Prepare(const std::string& job_id, server::PackRequest request) override;
  void CancelPrepare(const std::string& job_id) override;
  void KillWorker(int local_index, int64_t pid) override { KillLocal(fleet::kRoleTrain, local_index, pid); }
  std::string EndOf(int local_index, int64_t pid) override {
    return ServerProcess::EndOf(fleet::kRoleTrain, local_index, pid);
  }
  absl::Duration ShareServing(bool) override { return absl::ZeroDuration(); }
  std::vector<int64_t> CheckpointsOf(const std::string&) override { return {}; }  // only words of an error need them
  bool HasUnread(const fleet::WorkerInfo& info) override { return ServerProcess::HasUnread(info); }

  // --- TrainerEvents, on the links' threads ---
  void OnTrainer(server::WorkerId id, std::shared_ptr<server::TrainerClient> client, fleet::WorkerInfo info) override {
    PostJob([id, client, info](server::JobManager& manager) { manager.runs().OnTrainer(id, client, info); });
  }
  void OnTrainerHeartbeat(server::WorkerId id) override {
    PostJob([id](server::JobManager& manager) { manager.runs().OnTrainerHeartbeat(id); });
  }
  void OnTraining(server::WorkerId id, int64_t epoch, server::TrainingReport report) override {
    PostJob([id, epoch, report](server::JobManager& manager) { manager.runs().OnTraining(id, epoch, report); });
  }
  void OnTrainerLost(server::WorkerId id, std::string reason) override {
    PostJob([id, reason](server::JobManager& manager) { manager.runs().OnTrainerLost(id, reason); });
  }

  const server::JobManager::Options options_;
  MemoryDisk* const disk_;
  std::unique_ptr<server::JobStore> journal_;
  std::unique_ptr<server::JobManager> manager_;
  std::deque<Task> tasks_;
  std::map<std::string, bool> packing_;  // by job; false: cancelled
  bool running_ = false, loses_power_ = false;
  absl::Duration wall_;
};

}  // namespace switchyard::simulation
