// The engine: one thread that owns the scheduler, the workers' group and every live request.
//
//   inbox (requests, cancellations, what workers say) → Scheduler::Plan → WorkerGroup::Execute
//   → Scheduler::Commit → publish into the requests' streams
//
// Each part has a class that runs on this thread: steps, and the changes of the group (step_loop.h), requests
// (live_requests.h), the group (serving_group.h), expert placement (expert_load_balancing.h), profiles
// (profile_collector.h), and the load that clients see (load_monitor.h).
//
// Public methods are thread-safe and never block: they post to the inbox.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/balancer/expert_load_balancing.h"
#include "server/config.h"
#include "server/constraint/mask_pool.h"
#include "server/engine/engine_hooks.h"
#include "server/engine/engine_inbox.h"
#include "server/engine/live_requests.h"
#include "server/engine/profile_collector.h"
#include "server/engine/request.h"
#include "server/engine/step_choices.h"
#include "server/engine/step_loop.h"
#include "server/engine/token_stream.h"
#include "server/engine/train_slices.h"
#include "server/fleet/link_events.h"
#include "server/fleet/serving_group.h"
#include "server/metrics/load_monitor.h"
#include "server/metrics/metrics.h"
#include "server/text/text.h"

namespace switchyard::server {

class EngineLoop final {
 public:
  // All borrowed; they outlive the loop.
  EngineLoop(const ServerConfig* config, const text::TextProcessor* text, ServerMetrics* metrics, EngineHooks hooks);
  ~EngineLoop() { Stop(); }

  void Start();
  // Instead of Start, for a caller that lends its own thread: runs what was posted and what is due, and returns when to
  // call again at the latest.  After Stop it ends the loop as Start's thread does, and returns InfiniteFuture.
  absl::Time RunOnce();
  // Refuses new requests; calls `done` on the loop's thread when the running ones have ended or `timeout` is over (the
  // remaining ones then end with UNAVAILABLE, DRAINING).
  void Drain(absl::Duration timeout, std::function<void()> done);
  // Ends the requests that remain (UNAVAILABLE, DRAINING); from now on workers may go.
  void Dismiss();
  // Calls Dismiss, then ends the workers' links and the thread.  Later requests are refused in the same way.
  void Stop();

  // Names a submission; never reused.
  uint64_t NextHandle() { return next_handle_.fetch_add(1); }
  // Submits a request.  Its stream ends with an error if it is refused.
  void Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream);
  // Ends the request with `status`: Cancelled if its client is gone.
  void Cancel(uint64_t handle, absl::Status status);
  // Ends the request of that id with finish reason ABORT; `done` gets whether there was one.
  void Abort(std::string request_id, std::function<void(bool found)> done, Caller caller = {});

  // Calls `done` with experts' load and placement, or null before the first group and for a model without MoE layers;
  // on the loop's thread, or at once if the loop has ended.
  void CopyExperts(std::function<void(std::unique_ptr<const ExpertsCopy> experts)> done);
  // Calls `done` with how steps run and why, or null if the loop has ended; on the loop's thread, or at once.
  void CopyChoices(std::function<void(std::unique_ptr<const ChoicesCopy> choices)> done);
  // Collects the workers' profiles of routing.  Calls back on the loop's thread, or at once if the loop has ended;
  // UNAVAILABLE without a group, RESOURCE_EXHAUSTED while another call asks.
  void CollectProfile(ProfileCollector::Call call);

  // Time slices of the serving workers for training.
  TrainSlices* slices() { return &slices_; }
  // Receives the workers' messages.
  LinkEvents* links() { return &links_; }
  // Null before the first group.
  std::shared_ptr<const ServedModel> model() const { return group_.model(); }
  LoadSnapshot load() const { return load_.load(); }

 private:
  void Run();
  void Turn(std::vector<EngineInbox::Command>* commands);
  absl::Time NextTurn() const { return std::min(next_tick_, steps_.NextDeadline()); }
  void Tick(absl::Time now);
  void RunLast();

  const ServerConfig* const config_;
  const EngineHooks hooks_;
  std::atomic<uint64_t> next_handle_{1};
  EngineInbox inbox_;
  ServingGroup group_;
  ExpertLoadBalancing experts_;
  StepChoices choices_;
  ProfileCollector profiles_;
  LiveRequests requests_;
  TrainSlices slices_;
  LoadMonitor load_;
  StepLoop steps_;
  LinkEvents links_;
  absl::Time next_tick_ = absl::InfinitePast();
  MaskPool masks_;  // its threads end before what they post to
  std::thread thread_;
};

}  // namespace switchyard::server
