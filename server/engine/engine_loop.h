// The engine: one thread that owns the scheduler, the workers' group and every live request.
//
//   inbox (requests, cancellations, what workers say) → Scheduler::Plan → WorkerGroup::Execute
//   → Scheduler::Commit → publish into the requests' streams
//
// Public methods are thread-safe and never block: they post to the inbox, whose bound is the server's limit of open
// streams (each has one submission and one cancellation) and the workers' plans in flight.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/env.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/popularity/expert_census.h"
#include "server/balancer/experts_copy.h"
#include "server/balancer/placement_meter.h"
#include "server/balancer/planner_thread.h"
#include "server/balancer/residency_loop.h"
#include "server/config.h"
#include "server/engine/choice_output.h"
#include "server/engine/gather_window.h"
#include "server/engine/profile_collector.h"
#include "server/engine/request.h"
#include "server/engine/token_stream.h"
#include "server/engine/train_slices.h"
#include "server/fleet/worker_group.h"
#include "server/fleet/worker_service.h"
#include "server/metrics/metrics.h"
#include "server/text/text.h"

namespace switchyard {

// What GetLoad and the status line tell; a copy.
struct LoadSnapshot {
  struct Worker {
    int rank = -1;
    int64_t pid = 0;
    std::string host;
    std::string state;
    std::string metrics_address;  // HOST:PORT; empty: none
    RankStats stats;
  };
  bool ready = false;
  std::string not_ready_reason;
  SchedulerStats scheduler;
  std::vector<Worker> workers;
  int64_t group_epoch = 0;
};

class EngineLoop final : public LinkEvents, private WorkerGroup::Listener, private ResidencyLoop::Host {
 public:
  struct Hooks {
    std::function<void(bool ready)> on_ready;                     // readiness turned
    std::function<void(int local_index, int64_t pid)> on_fenced;  // kill this local worker
    // How the process of a local worker ended ("signal 9 (Killed)"); empty if it runs or nobody knows.
    std::function<std::string(int local_index, int64_t pid)> end_of;
    std::function<bool(const WorkerInfo&)> has_unread;       // whether something that it said was not read yet
    std::function<void(const std::string& token)> on_epoch;  // open the rendezvous store
    std::function<void(absl::Time now)> on_tick;             // every 50 ms or so: what waits for a time limit
    std::function<void()> on_first_group;                    // a group stood for the first time
    std::function<void(std::string why)> on_fatal;           // the server cannot start with these workers
  };

  // All borrowed; they outlive the loop.
  EngineLoop(const ServerConfig* config, const TextRoom* text, ServerMetrics* metrics, Hooks hooks);
  ~EngineLoop() override;

  void Start();
  // No new requests; calls `done` on the loop's thread when the running ones have ended or `timeout` is over (those
  // that remain then end with UNAVAILABLE, DRAINING).
  void Drain(absl::Duration timeout, std::function<void()> done);
  // Ends the requests that remain (UNAVAILABLE, DRAINING); from now on workers may go.
  void Dismiss();
  // Dismiss, and ends the workers' links and the thread; whatever comes later is
  // refused alike.
  void Stop();

  // Names a submission; never reused.
  uint64_t NextHandle() { return next_handle_.fetch_add(1); }
  // The stream ends with an error when the request cannot be taken.
  void Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream);
  // The client is gone (Cancelled) or something else ends the request with `status`.
  void Cancel(uint64_t handle, absl::Status status);
  // Ends the request of that id with finish reason ABORT; calls back with whether there was one.
  void Abort(std::string request_id, std::function<void(bool found)> done);

  // Calls back with how experts are used and where they are, null before the first group stood and for a model without
  // MoE layers; on the loop's thread, or at once if the loop has ended.
  void CopyExperts(std::function<void(std::unique_ptr<const ExpertsCopy> experts)> done);

  // Asks the workers for what they have learned.  `call` hears of it on the loop's thread (its `done` at once if the
  // loop has ended); UNAVAILABLE without a group, RESOURCE_EXHAUSTED while another call asks.
  void CollectProfile(ProfileCollector::Call call);

  // What training on the workers gets of their time; any thread, as it says.
  TrainSlices* slices() { return &slices_; }

  // Null until the workers told of the model.
  std::shared_ptr<const ServedModel> model() const;
  LoadSnapshot load() const;

  // --- LinkEvents: gRPC's threads ---
  void OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, WorkerInfo info) override;
  void OnHeartbeat(WorkerId id) override;
  void OnLoadProgress(WorkerId id, int64_t done, int64_t total) override;
  void OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) override;
  void OnStepResult(WorkerId id, int64_t epoch, int64_t step, RankResult result) override;
  void OnGroupFault(WorkerId id, int64_t epoch, std::string message) override;
  void OnPlacementPrepared(WorkerId id, int64_t group_epoch, int64_t placement_epoch, std::string error) override;
  void OnPlacementReleased(WorkerId id, int64_t group_epoch, int64_t placement_epoch) override;
  void OnExpertReport(WorkerId id, int64_t group_epoch, std::shared_ptr<const ExpertReport> report) override;
  void OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) override;
  void OnLinkLost(WorkerId id, std::string reason) override;

 private:
  using Command = absl::AnyInvocable<void()>;

  struct LiveRequest {
    uint64_t handle = 0;
    std::unique_ptr<InferenceRequest> request;
    std::shared_ptr<TokenStream> stream;  // shared with the reactor
    std::vector<ChoiceOutput> choices;
    std::vector<OutputChunk> chunks;  // [n] being filled by the current publish
    std::vector<bool> ended;
    int unfinished = 0;
    int32_t most_tokens = 0;  // of the longest choice that has ended
    bool saw_first_token = false;
    absl::Status error;  // of a choice that ended badly: ends the call
  };

  // engine_loop.cc: the thread
  // False: the loop has ended, nothing will run.
  bool Post(Command command);
  void Run();
  void RunLast();
  void Tick(absl::Time now);
  bool Gathering(absl::Time now);
  void CheckStart(absl::Time now);
  bool GivenUp(absl::Time now) const;
  std::string WhyNoGroup() const;
  void PlanAll(absl::Time now, std::vector<Event>* events);
  bool WaitsForSlice(absl::Time now);
  void GiveSlice(absl::Time now);
  void UpdateSnapshot();
  void ReportSlices();
  static void DumpStep(int64_t epoch, int64_t step, const char* what, const std::string& text);

  // engine_workers.cc: groups, steps, what workers say
  void OnEpoch(const std::string& store_token) override;
  bool HasUnread(const WorkerInfo& info) override { return hooks_.has_unread && hooks_.has_unread(info); }
  bool Contradicts(int32_t context) const;
  void OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const WorkerInfo& first) override;
  void OnGroupDown(const std::string& reason) override;
  void OnStepDone(const StepResult& result) override;
  void OnLocalWorkerFenced(int local_index, int64_t pid) override;
  void ObserveStep(const StepResult& result, absl::Time now);
  absl::Status CountExperts(const StepResult& result);
  std::string WhyLost(WorkerId id, const std::string& link_reason) const;
  void PublishModel(int world, const WorkerInfo& info);

  // engine_placement.cc: where experts are
  GroupPlacement OnForming(const std::vector<WorkerInfo>& workers) override;
  void Plan(PlanOrder order) override;
  void Prepare(const PlacementStage& stage) override;
  void Drop(int64_t epoch) override;
  void Release(int64_t epoch) override;
  void BreakGroup(const std::string& why) override;
  // -1: none, or of another group than the one that serves.
  int RankIn(WorkerId id, int64_t group_epoch) const;
  void PlaceExperts(const StepResult& result);
  void ReportPlacement();
  void AskForProfile(int rank, int64_t request, int64_t offset);

  // engine_requests.cc: requests
  void HandleSubmit(uint64_t handle, std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream);
  void HandleCancel(uint64_t handle, const absl::Status& status);
  absl::Status Admit(const InferenceRequest& request, absl::Time now) const;
  absl::Status GivenUpError() const;
  absl::Status Refusal(const absl::Status& status) const;
  void EndSlowReaders(absl::Time now);
  void EndAll(const absl::Status& status);
  static absl::Status Stopping();
  void Publish(std::vector<Event> events, absl::Time now);
  void PublishOne(Event event, absl::Time now, std::vector<Event>* more);
  void PublishPaths(LiveRequest* live, int choice, ExpertPathsEvent paths);
  void PublishToken(LiveRequest* live, int choice, TokenEvent token, absl::Time now, std::vector<Event>* more);
  void PublishFinished(LiveRequest* live, int choice, const FinishedEvent& finished);
  void FlushChunks(LiveRequest* live, absl::Time now);
  void EndCall(LiveRequest* live, absl::Status status, absl::Time now);
  absl::Status ErrorOf(const LiveRequest& live, FinishReason reason) const;

  const ServerConfig* const config_;
  const TextRoom* const text_;
  ServerMetrics* const metrics_;
  const Hooks hooks_;
  const bool dump_steps_ = !EnvString("SY_DUMP_STEP").empty();

  // --- the loop's thread only ---
  std::unique_ptr<Scheduler> scheduler_;
  WorkerGroup group_;
  std::optional<ExpertCensus> census_;   // from the first group on, of a model with experts
  std::optional<PlacementMeter> meter_;  // from the first forming on, of a model with experts
  ResidencyLoop residency_;
  ProfileCollector profiles_;
  std::vector<ToldReport> expert_reports_;                            // [R] of the group that stands
  ResidencyView reported_placement_;                                  // as the metrics have it
  absl::flat_hash_map<uint64_t, std::unique_ptr<LiveRequest>> live_;  // by handle = the scheduler's request id
  absl::flat_hash_map<std::string, uint64_t> by_request_id_;
  std::map<int64_t, absl::Time> step_sent_;
  GatherWindow gather_window_;
  absl::Time gather_until_ = absl::InfiniteFuture();
  TrainSlices slices_;
  absl::Time slice_until_ = absl::InfiniteFuture();  // of one that steps wait for
  int64_t reported_slices_ = 0;                      // as the metrics have it
  absl::Duration reported_slice_time_;
  std::string down_reason_;
  absl::Time down_since_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::function<void()> drained_;
  SchedulerStats reported_;        // totals that the counters already have
  std::vector<uint64_t> touched_;  // live requests with chunks to flush

  std::atomic<uint64_t> next_handle_{1};
  mutable absl::Mutex mu_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mu_);
  LoadSnapshot snapshot_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
  std::unique_ptr<PlannerThread> planner_;  // null before the first plan; goes first, as it posts
};

}  // namespace switchyard
