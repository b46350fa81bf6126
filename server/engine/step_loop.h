// Runs the steps of the serving group: plan → execute → commit → publish, with up to two steps in flight.  Masks of
// constrained outputs follow their plan as soon as the step before is committed.
//
// Used on the engine's thread.  Between steps training gets its time slices (train_slices.h); a burst's first step
// waits a little for the rest of it (batching_delay.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batching/event.h"
#include "server/balancer/expert_load_balancing.h"
#include "server/constraint/mask_pool.h"
#include "server/engine/batching_delay.h"
#include "server/engine/engine_hooks.h"
#include "server/engine/live_requests.h"
#include "server/engine/profile_collector.h"
#include "server/engine/step_choices.h"
#include "server/engine/train_slices.h"
#include "server/fleet/serving_group.h"
#include "server/metrics/load_monitor.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class StepLoop final : public WorkerGroup::Listener {
 public:
  // All borrowed; they outlive this.
  struct Parts {
    ServingGroup* group;
    LiveRequests* requests;
    ExpertLoadBalancing* experts;
    StepChoices* choices;
    ProfileCollector* profiles;
    TrainSlices* slices;
    LoadMonitor* load;
    MaskPool* masks;
  };
  StepLoop(const Parts& parts, ServerMetrics* metrics, const EngineHooks* hooks);

  // Sends the steps that can be planned now, and publishes the events of planning.
  void Advance(absl::Time now);
  // A mask of tokens was made, or cannot be.
  void OnMask(batching::MaskAnswer answer, absl::Duration took);
  // Returns the latest time for the next call of Advance.
  absl::Time NextDeadline() const;

  // --- WorkerGroup::Listener ---
  void OnEpoch(const std::string& store_token) override { hooks_->on_epoch(store_token); }
  void OnForming(const std::vector<fleet::WorkerInfo>& workers) override { parts_.experts->Begin(workers); }
  void OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first) override;
  void OnGroupDown(const std::string& reason) override;
  void OnStepDone(const batching::StepResult& result) override;
  bool HasUnread(const fleet::WorkerInfo& info) override { return hooks_->has_unread && hooks_->has_unread(info); }
  void OnFenced(const fleet::WorkerInfo& info) override;

 private:
  // Has masks made that take long, and sends those of steps under way that are known.
  void SendMasks();
  void PlanAll(absl::Time now, std::vector<batching::Event>* events);
  bool Gathering(absl::Time now);
  bool WaitsForSlice(absl::Time now);
  void GiveSlice(absl::Time now);
  void ObserveStep(const batching::StepResult& result, absl::Time now);

  const Parts parts_;
  ServerMetrics* const metrics_;
  const EngineHooks* const hooks_;
  const std::string dump_directory_;    // SY_DUMP_STEP; empty: no dumps
  std::map<int64_t, absl::Time> sent_;  // steps under way
  BatchingDelay batching_delay_;
  absl::Time delay_until_ = absl::InfiniteFuture();
  absl::Time slice_until_ = absl::InfiniteFuture();  // end of the slice for which steps wait
};

}  // namespace switchyard::server
