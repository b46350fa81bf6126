// The group of workers that serves, as steps and requests see it: who is in it, the scheduler whose ranks are its
// workers, the model that they told of, and why it is not there.
//
// Of the engine's thread, but for model().  What happens in the group goes to the WorkerGroup::Listener.
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
#include "server/fleet/worker_group.h"
#include "server/metrics/metrics.h"
#include "server/text/text.h"

namespace switchyard::server {

class ServingGroup {
 public:
  // All borrowed; they outlive this.
  struct Around {
    const ServerConfig* config;
    const text::TextProcessor* text;
    ServerMetrics* metrics;
    const EngineHooks* hooks;
  };
  ServingGroup(const Around& around, WorkerGroup::Listener* listener);

  WorkerGroup& workers() { return workers_; }
  const WorkerGroup& workers() const { return workers_; }
  bool ready() const { return workers_.state() == WorkerGroup::State::kReady; }
  // Null before the first group stood.
  batching::Scheduler* scheduler() const { return scheduler_.get(); }
  // Null likewise.  Any thread.
  std::shared_ptr<const ServedModel> model() const;

  // The worker's rank; -1: none, or of another group than the one that serves.
  int RankIn(WorkerId id, int64_t group_epoch) const;
  // Null: nobody has that rank.
  WorkerClient* ClientOf(int rank) const;

  // A worker registers: it gets a assignment, or its link is closed.
  void Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info);
  // A link is lost.
  void Lost(WorkerId id, const std::string& link_reason);
  // The workers' time limits; before the first group, that of the start.
  void Tick(absl::Time now);

  // The group has formed: the scheduler starts with it, the first of all makes it.
  void Up(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first, absl::Time now,
          std::vector<batching::Event>* events);
  // The group is lost.  The scheduler still has to be told.
  void Down(const std::string& reason, absl::Time now);
  // Why the last group was lost.
  const std::string& down_reason() const { return down_reason_; }
  // Whether nothing came back of a lost group for as long as the first one may take: then nobody waits for it any more,
  // until a worker makes progress again.
  bool GivenUp(absl::Time now) const;
  absl::Status GivenUpError() const;

 private:
  void CheckStart(absl::Time now);
  std::string WhyNoGroup() const;
  bool Contradicts(int32_t context) const;
  void PublishModel(int world, const fleet::WorkerInfo& info);

  const Around around_;
  WorkerGroup workers_;
  std::unique_ptr<batching::Scheduler> scheduler_;
  std::string down_reason_;
  absl::Time down_since_ = absl::InfinitePast();
  mutable absl::Mutex mu_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mu_);
};

// UNAVAILABLE, WORKER_LOST; to be tried again after a second.
absl::Status WorkersLost(const std::string& message);

}  // namespace switchyard::server
