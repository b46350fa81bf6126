// The server's process: the engine, the workers' service and the rendezvous stores as they are in production, driven by
// the world's events; and what starts local workers again, which is simulated (as server/fleet/local_fleet.h does it).
//
// A crash drops everything at once.  Local workers die with the server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/config.h"
#include "server/engine/engine_loop.h"
#include "server/fleet/group_store.h"
#include "server/fleet/worker_service.h"
#include "server/jobs/trainer_client.h"
#include "tests/simulation/core/process.h"
#include "tests/simulation/net/server_stream.h"

namespace switchyard::simulation {

class WorkerProcess;

class ServerProcess : public Process {
 public:
  // What all servers of this program share; none of it has a state that decisions depend on.
  struct Shared {
    const text::TextProcessor* text;
    server::ServerMetrics* metrics;
  };
  ServerProcess(World* world, server::ServerConfig config, Shared shared);
  ~ServerProcess() override;

  // Local workers start and end with the server.  Borrowed; index: of its kind.
  void AddLocal(WorkerProcess* worker) { local_.push_back({.worker = worker}); }
  // Starts the process and its local workers.
  void Boot();
  // SIGTERM: it drains, ends, and is started again by whoever watches it.
  void Terminate();

  // --- the network's side ---
  void Connect(std::shared_ptr<Connection> connection);
  // A worker's calls of the rendezvous store; `done` runs on the caller's process, if it lives.
  void StoreSet(const Host& host, Process* caller, v1::StoreSetRequest request, std::function<void(absl::Status)> done);
  void StoreGet(const Host& host, Process* caller, v1::StoreGetRequest request, std::function<void(absl::Status)> done);

  // --- the clients' side --- REQUIRES: runs().
  server::EngineLoop& engine() { return *engine_; }
  // The engine has something to do.
  void WakeEngine();

  bool ready() const { return ready_; }
  // Requests may come: the server takes calls.
  bool listens() const { return runs() && engine_ != nullptr && !terminating_; }
  int64_t boots() const { return boots_; }
  const server::ServerConfig& config() const { return config_; }
  // Called when a local worker's process has ended.
  void OnLocalDeath(WorkerProcess* worker, const std::string& how);
  int64_t oom_kills = 0;                                     // of the machine
  std::function<void()> on_forming = [] {};                  // a group is about to form
  std::function<void(bool restart)> on_death = [](bool) {};  // restart: somebody must start it again

 protected:
  void OnDeath(const std::string& how) override;
  // The jobs' part, if there is one (training/job_server.h).
  virtual server::TrainerEvents* OpenJobs() { return nullptr; }
  virtual void DropJobs() {}
  virtual void OnStoreTick(absl::Time) {}

  server::GroupStore* store() { return store_.get(); }
  bool HasUnread(const fleet::WorkerInfo& info) const;
  void KillLocal(const std::string& role, int index, int64_t pid);
  std::string EndOf(const std::string& role, int index, int64_t pid) const;

 private:
  struct Local {
    WorkerProcess* worker;
    int64_t last_pid = 0;
    std::string last_end = {};
    absl::Time started = {};
    int early_deaths = 0;
  };
  struct StoreCall;
  server::EngineHooks Hooks();
  void Turn();
  void StartLocal(Local* local);
  void CallStore(const Host& host, Process* caller, std::function<void(StoreCall*)> call,
                 std::function<void(absl::Status)> done);

  const server::ServerConfig config_;
  const Shared shared_;
  std::vector<Local> local_;
  std::unique_ptr<server::GroupStore> store_;
  std::unique_ptr<server::EngineLoop> engine_;
  std::unique_ptr<server::WorkerServiceImpl> service_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<grpc::CallbackServerContext>> contexts_;
  std::vector<std::unique_ptr<ServerStream>> streams_;
  std::map<int64_t, ServerStream*> stream_of_;  // by the worker's pid
  std::vector<std::unique_ptr<StoreCall>> calls_;
  std::string serving_token_;
  absl::Time next_turn_ = absl::InfiniteFuture();  // the earliest that is posted
  bool ready_ = false, terminating_ = false;
  int64_t boots_ = 0;
};

}  // namespace switchyard::simulation
