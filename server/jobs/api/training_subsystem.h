// All of the server that trains: roots, journal, jobs, packing, logs, service, this machine's training workers.  A
// server without training workers has the service alone, which says so; so has one whose journal is damaged, or whose
// checkpoint root is gone or cannot be read or written: it serves on.
// Open, then StartWorkers, Drain, StopWorkers, Stop, in this order.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "server/api/request_context.h"
#include "server/config.h"
#include "server/fleet/group_store.h"
#include "server/fleet/local_fleet.h"
#include "server/jobs/api/training_service.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/job_loop.h"
#include "server/jobs/journal/job_store.h"
#include "server/jobs/pack_runner.h"
#include "server/jobs/training_host.h"
#include "server/metrics/training_metrics.h"

namespace switchyard::server {

class TrainingSubsystem {
 public:
  // Where a worker of this machine finds its server.
  struct Door {
    std::string server;      // HOST:PORT
    std::string socket;      // of this machine, that leads to the same
    std::string token_file;  // that the workers inherit
  };

  // Borrowed: the context, whose engine comes later, and store.  Errors: a dataset root that cannot be opened; a
  // journal that another server holds, or that another program or a newer server wrote.
  static absl::StatusOr<std::unique_ptr<TrainingSubsystem>> Open(RequestContext* training_context, GroupStore* store,
                                                                 std::string worker_binary);
  ~TrainingSubsystem();

  TrainingServiceImpl* service() { return service_.get(); }
  TrainerEvents* trainers() { return jobs_.get(); }  // null: none are wanted
  absl::Status StartWorkers(Door door);
  // Running jobs save and stop; `done` when they have, at most once.
  void Drain(std::function<void()> done);
  void StopWorkers();
  // Links and watches end.  Blocks until threads are gone.
  void Stop();

 private:
  TrainingSubsystem(RequestContext* training_context, GroupStore* store, std::string worker_binary)
      : config_(training_context->config),
        training_context_(training_context),
        store_(store),
        worker_binary_(std::move(worker_binary)) {}
  absl::Status OpenRoots();
  absl::Status OpenJobs();
  // OpenJobs has failed for a reason that is not this server's to refuse.
  void DisableJobs(const absl::Status& why);
  std::vector<std::string> WorkerArgs(int index) const;

  const ServerConfig* const config_;
  RequestContext* const training_context_;
  GroupStore* const store_;
  const std::string worker_binary_;
  std::optional<RootDir> datasets_, checkpoints_;
  std::unique_ptr<DataPreparer> preparer_;
  std::unique_ptr<ProgressSink> sink_;
  std::unique_ptr<TrainingMetrics> metrics_;
  Door door_;
  std::unique_ptr<LocalFleet> fleet_;
  std::unique_ptr<JobLoop> jobs_;
  absl::Status no_jobs_;  // why there are none
  std::unique_ptr<PackRunner> packs_;
  std::atomic<bool> stopping_ = false;  // whoever asks the workers' program about a model waits no longer
  std::unique_ptr<TrainingServiceImpl> service_;
};

}  // namespace switchyard::server
