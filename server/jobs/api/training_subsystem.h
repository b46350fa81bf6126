// The training part of the server: roots, journal, jobs, packing, logs, service, and this machine's training workers.
// Without training workers it has only the service, whose errors say so.  The same holds if the journal is damaged, or
// the checkpoint root is missing or cannot be read or written: the server then serves without jobs.  Call Open,
// StartWorkers, Drain, StopWorkers and Stop in this order.
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
  // The addresses at which local workers reach their server.
  struct Door {
    std::string server;      // HOST:PORT
    std::string socket;      // this machine's socket of the same server
    std::string token_file;  // inherited by the workers
  };

  // Borrows the context (whose engine may be set later) and the store.  Errors: the dataset root cannot be opened; the
  // journal is held by another server, or was written by another program or a newer server.
  static absl::StatusOr<std::unique_ptr<TrainingSubsystem>> Open(RequestContext* training_context, GroupStore* store,
                                                                 std::string worker_binary);
  ~TrainingSubsystem();

  TrainingServiceImpl* service() { return service_.get(); }
  TrainerEvents* trainers() { return jobs_.get(); }  // null: this server does not train
  absl::Status StartWorkers(Door door);
  // Has running jobs save and stop; calls `done` when they have, at most once.
  void Drain(std::function<void()> done);
  void StopWorkers();
  // Ends links and watches; blocks until the threads are gone.
  void Stop();

 private:
  TrainingSubsystem(RequestContext* training_context, GroupStore* store, std::string worker_binary)
      : config_(training_context->config),
        training_context_(training_context),
        store_(store),
        worker_binary_(std::move(worker_binary)) {}
  absl::Status OpenRoots();
  absl::Status OpenJobs();
  // Disables jobs after an error of OpenJobs that must not keep the server from serving.
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
  absl::Status no_jobs_;  // why jobs are disabled
  std::unique_ptr<PackRunner> packs_;
  std::atomic<bool> stopping_ = false;  // ends waits for the workers' program about a model
  std::unique_ptr<TrainingServiceImpl> service_;
};

}  // namespace switchyard::server
