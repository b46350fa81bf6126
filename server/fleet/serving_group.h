// The serving group as steps and requests see it: its workers, their scheduler, the model that they serve, and the
// reason while there is no group.
//
// Used on the engine's thread, except for model().  The WorkerGroup::Listener is called when the group changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/batching/scheduler.h"
#include "server/config.h"
#include "server/engine/engine_hooks.h"
#include "server/engine/request.h"
#include "server/fleet/loss_causes.h"
#include "server/fleet/worker_group.h"
#include "server/metrics/metrics.h"
#include "server/text/text.h"

namespace switchyard::server {

inline constexpr char kOnlyTrains[] = "this server serves no model: it was started without --model, to train jobs";
// Why no request can be served before the first group has formed: MODEL_LOADING, which may be tried again, with `why`;
// NOT_FOUND (MODEL_NOT_FOUND) where none will ever form.
absl::Status LoadingError(const ServerConfig& config, const std::string& why);

class ServingGroup {
 public:
  // All borrowed; they outlive this.
  ServingGroup(const ServerConfig* config, const text::TextProcessor* text, ServerMetrics* metrics,
               const EngineHooks* hooks, WorkerGroup::Listener* listener);

  WorkerGroup& workers() { return workers_; }
  const WorkerGroup& workers() const { return workers_; }
  bool ready() const { return workers_.state() == WorkerGroup::State::kReady; }
  bool only_trains() const { return config_->only_trains; }
  std::string NotReadyReason() const { return config_->only_trains ? kOnlyTrains : workers_.NotReadyReason(); }
  // Null before the first group has formed.
  batching::Scheduler* scheduler() const { return scheduler_.get(); }
  // Null before the first group has formed.  Thread-safe.
  std::shared_ptr<const ServedModel> model() const {
    absl::MutexLock lock(&mu_);
    return model_;
  }

  // Returns the worker's rank in the group of that epoch; -1 if it has none, or if that group does not serve.
  int RankIn(WorkerId id, int64_t group_epoch) const;
  // Returns null if no member has that rank.
  WorkerClient* ClientOf(int rank) const;

  // Makes the worker a member, or closes its link.
  void Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info);
  // Removes a worker whose link was lost.
  void Lost(WorkerId id, const std::string& link_reason);
  // A worker was fenced.
  void NoteFenced() { loss_causes_.Fenced(); }
  // Checks the workers' time limits and, before the first group, the limit of the start.
  void Tick(absl::Time now);

  // The group has formed: creates the scheduler for the first group, and starts it with each.
  void Up(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first, absl::Time now,
          std::vector<batching::Event>* events);
  // The group is lost.  The caller informs the scheduler.
  void Down(const std::string& reason, absl::Time now);
  // The reason why the last group was lost.
  const std::string& down_reason() const { return down_reason_; }
  // Whether forming a new group has made no progress for --start_timeout.  Requests then do not wait, until a worker
  // makes progress again.
  bool GivenUp(absl::Time now) const;
  absl::Status GivenUpError() const;

 private:
  std::string WhyNoGroup() const;
  void PublishModel(int world, const fleet::WorkerInfo& info);

  const ServerConfig* const config_;
  const text::TextProcessor* const text_;
  ServerMetrics* const metrics_;
  const EngineHooks* const hooks_;
  WorkerGroup workers_;
  LossCauses loss_causes_;  // since the last group formed
  std::unique_ptr<batching::Scheduler> scheduler_;
  std::string down_reason_;
  absl::Time down_since_ = absl::InfinitePast();
  mutable absl::Mutex mu_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mu_);
};

// Returns UNAVAILABLE (WORKER_LOST); clients may retry after a second.
absl::Status WorkersLost(const std::string& message);

}  // namespace switchyard::server
