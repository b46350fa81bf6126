// Pool of registered training workers: which of them are busy, and which have fallen silent.
//
// A job gets workers of one kind of device and one instruction set, since bits differ between kinds.  Workers that only
// train form one pool.  Workers that also serve form another, which one job at a time uses; the serving group watches
// and ends their links.  Thread-compatible; reads no clock.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/admission/join_tokens.h"
#include "server/fleet/server_stall.h"
#include "server/jobs/trainer_client.h"

namespace switchyard::server {

struct TrainingWorker {
  WorkerId id = 0;
  std::shared_ptr<TrainerClient> client;  // shared with its link
  fleet::WorkerInfo info;
  absl::Time last_seen;
  bool busy = false;
  bool stranded = false;  // its attempt was given up, but the worker has not ended it
};

class TrainerPool {
 public:
  struct Options {
    int configured = 0;    // most workers at once
    JoinTokens tokens;     // workers must present one of them
    bool serving = false;  // the pool's workers also serve
    absl::Duration silence =
        absl::Seconds(5);  // after which a worker is lost; long, as peers notice a broken link themselves
  };
  explicit TrainerPool(Options options) : options_(std::move(options)) {}

  // Adds a worker.  Unauthenticated, AlreadyExists, ResourceExhausted: as for serving workers.
  absl::Status Register(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info, absl::Time now);
  void Heartbeat(WorkerId id, absl::Time now);
  // Marks a serving worker whose attempt was given up: it is not ended for that, but stays busy until OnEnded.
  void Strand(WorkerId id);
  // A stranded worker has ended its attempt.
  void OnEnded(WorkerId id);
  std::optional<TrainingWorker> Remove(WorkerId id);
  // Returns workers that have been silent for too long; does not remove them.  Call regularly: a pause between two
  // calls is the server's own and does not count, nor does the silence of a worker for which `has_unread` is true.
  std::vector<WorkerId> Silent(absl::Time now, const std::function<bool(const fleet::WorkerInfo&)>& has_unread);

  // Most workers that a job can get now.
  int NumIdle() const;
  // Number of workers that a job on `workers` of them makes unavailable to others.
  int Cost(int workers) const { return options_.serving ? options_.configured : workers; }
  int NumBusy() const;
  int NumRegistered() const { return static_cast<int>(trainers_.size()); }
  int configured() const { return options_.configured; }
  // Takes workers, local ones first by their index; they are busy until Release.  REQUIRES: count <= NumIdle().
  std::vector<TrainingWorker> Take(int count);
  void Release(WorkerId id);

  const std::map<WorkerId, TrainingWorker>& trainers() const { return trainers_; }

 private:
  absl::Status CheckRoom(const fleet::WorkerInfo& info) const;
  std::vector<WorkerId> LargestIdleKind() const;

  const Options options_;
  std::map<WorkerId, TrainingWorker> trainers_;
  ServerStall server_stall_;
};

// The pool of workers that only train and the pool of those that also serve.
struct TrainerPools {
  TrainerPool& Of(const jobs::JobSpec& spec) { return spec.on_serving_workers ? serving : alone; }
  const TrainerPool& Of(const jobs::JobSpec& spec) const { return spec.on_serving_workers ? serving : alone; }
  std::optional<TrainingWorker> Remove(WorkerId id);

  TrainerPool alone;    // workers that train alone
  TrainerPool serving;  // workers that also serve
};

}  // namespace switchyard::server
