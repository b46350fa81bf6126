// The training workers that are there: who registered, who is busy, who has fallen silent.
//
// A job takes workers of one device and instruction set: others' bits would differ.  Workers that train alone are in
// one pool; those that also serve are in another, which one job at a time uses, and whose links the serving group
// judges and ends.  Thread-compatible; reads no clock.
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
  bool stranded = false;  // its attempt was given up, but it has not ended it
};

class TrainerPool {
 public:
  struct Options {
    int configured = 0;    // that may be there at once
    JoinTokens tokens;     // of which they must present one
    bool serving = false;  // they also serve
    absl::Duration silence =
        absl::Seconds(5);  // then one is given up: training is in no hurry, its peers see a link break
  };
  explicit TrainerPool(Options options) : options_(std::move(options)) {}

  // Unauthenticated, AlreadyExists, ResourceExhausted: as for serving workers.
  absl::Status Register(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info, absl::Time now);
  void Heartbeat(WorkerId id, absl::Time now);
  // One that serves may not be ended for its training's sake: it stays busy until OnEnded.
  void Strand(WorkerId id);
  // It has ended an attempt that nobody awaits any more.
  void OnEnded(WorkerId id);
  std::optional<TrainingWorker> Remove(WorkerId id);
  // Those that have been silent for too long; they are not removed.  Call it all the time: a pause between two calls
  // was the server's own and counts as nobody's silence, nor does what `has_unread` reports.
  std::vector<WorkerId> Silent(absl::Time now, const std::function<bool(const fleet::WorkerInfo&)>& has_unread);

  // The most that a job can get.
  int NumIdle() const;
  // How many of those are no other job's when one of so many workers has its own.
  int Cost(int workers) const { return options_.serving ? options_.configured : workers; }
  int NumBusy() const;
  int NumRegistered() const { return static_cast<int>(trainers_.size()); }
  int configured() const { return options_.configured; }
  // Local ones first, by their index.  They are busy until Release.  REQUIRES: count <= NumIdle().
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

// Both pools.
struct TrainerPools {
  TrainerPool& Of(const jobs::JobSpec& spec) { return spec.on_serving_workers ? serving : alone; }
  const TrainerPool& Of(const jobs::JobSpec& spec) const { return spec.on_serving_workers ? serving : alone; }
  std::optional<TrainingWorker> Remove(WorkerId id);

  TrainerPool alone;    // workers that train alone
  TrainerPool serving;  // workers that also serve
};

}  // namespace switchyard::server
