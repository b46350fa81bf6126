// State machine of the workers' serving group: its members, its epoch, its steps, and whether it is complete.
//
//   kWaiting ── all assignments taken ──► kJoining ── all ready ──► kReady
//      ▲──── a member is lost, faults, is too slow or falls silent ────┘
//
// A group that forms again has a new epoch; messages of an old one are dropped.  Survivors keep their ranks (and so
// their loaded experts); a new worker gets a free rank.  Once a group has served a model, workers with other weights
// are refused until the server ends, even when no member is left.  Before that, the server's local workers determine
// what is served (weights, ISA, dtype): a worker from elsewhere that registers before them must try again, so that it
// cannot shut them out.  Without local workers the first worker that registers determines it.  A worker that stops
// answering is fenced: its link is closed, the others abort their collectives, and its later messages belong to an old
// epoch.
//
// Has no thread, clock or socket: the engine loop owns it and calls it with the time.  Listener is called
// synchronously.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/fleet/load_progress.h"
#include "server/admission/join_tokens.h"
#include "server/fleet/server_stall.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class WorkerGroup {
 public:
  struct Options {
    int world = 1;
    int local_workers = 0;                // started by this server; the others must match them
    std::string dtype = "auto";           // of all workers; auto: any that they agree on
    std::string quantization = "auto";    // of all workers' matrices; auto: the same of all
    std::string kv_cache_dtype = "auto";  // of all workers' keys and values; auto: the dtype
    JoinTokens tokens;
    bool encrypt_links = false;  // TLS between the workers
    absl::Duration suspect_after = absl::Seconds(1);
    absl::Duration fence_after = absl::Milliseconds(1500);
    absl::Duration form_timeout = absl::Seconds(30);  // for joining, while no worker makes progress
    // A step may take step_timeout plus row_timeout for each of its rows.  Once steps were measured, a row may take at
    // most a multiple of the slowest step's time per row.
    absl::Duration step_timeout = absl::Seconds(120);
    absl::Duration row_timeout = absl::Seconds(1);
  };

  class Listener {
   public:
    virtual ~Listener() = default;
    // Opens the epoch's rendezvous store under this token, and closes the last epoch's.
    virtual void OnEpoch(const std::string& store_token) = 0;
    // A group forms of these workers, which have one model.
    virtual void OnForming(const std::vector<fleet::WorkerInfo>& workers) = 0;
    virtual void OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first) = 0;
    // `reason` is also sent to clients: it names ranks, but no processes or addresses.
    virtual void OnGroupDown(const std::string& reason) = 0;
    virtual void OnStepDone(const batching::StepResult& result) = 0;
    // Whether the worker's connection has unread bytes.  Called often.
    virtual bool HasUnread(const fleet::WorkerInfo&) { return false; }
    // A worker does not answer; a local one is to be killed.
    virtual void OnFenced(const fleet::WorkerInfo& info) = 0;
  };

  enum class State { kWaiting, kJoining, kReady };

  struct Member {
    std::shared_ptr<WorkerClient> client;  // shared with its gRPC stream
    fleet::WorkerInfo info;
    int rank = -1;  // -1: no assignment yet
    absl::Time last_seen;
    bool suspect = false;
    bool ready = false;
    int32_t num_kv_blocks = 0;
    fleet::LoadProgress load = {};  // what it said last since the epoch began to form; epoch 0: nothing yet
    // How far each of its counts came, by phase and total, since it registered or a group was ready.
    std::map<std::pair<fleet::LoadPhase, int64_t>, int64_t> furthest = {};
  };

  WorkerGroup(Options options, Listener* listener);

  // Whether this server started the worker.
  bool IsOwn(const fleet::WorkerInfo& info) const;

  // Events of workers.  If Register returns an error, the caller closes the worker's link with it.  Progress, readiness
  // and results are signs of life as heartbeats are, which may be late on a busy machine.
  absl::Status Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info, absl::Time now);
  void Heartbeat(WorkerId id, absl::Time now);
  // Figures that differ from the worker's last ones move form_timeout on; only what is more than in all epochs before
  // is progress of the start.
  void LoadProgress(WorkerId id, const fleet::LoadProgress& progress, absl::Time now);
  void Ready(WorkerId id, const fleet::GroupReady& ready, absl::Time now);
  void Fault(WorkerId id, int64_t epoch, const std::string& message, absl::Time now);
  void Lost(WorkerId id, const std::string& reason, absl::Time now);
  void Result(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result, absl::Time now);

  // Removes a member that does not fit, and closes its link.
  void Evict(WorkerId id, const absl::Status& status, absl::Time now);

  // Sends a plan to every rank.  REQUIRES: kReady.
  void Execute(const batching::StepPlan& plan, absl::Time now);
  // Sends the masks of a plan in flight to the ranks that they are for.  REQUIRES: kReady.
  void SendMasks(const batching::StepMasks& masks);
  // Lets training on the ranks run for `slice`, or until the next plan.  REQUIRES: kReady.
  void GiveSlice(absl::Duration slice);
  // Ends the group; the next one may form after a pause that grows with failed tries.  If a member is lost meanwhile,
  // that was why, and the pause ends.
  void Break(const std::string& reason, absl::Time now);
  // The server stops: no more plans are sent or groups formed, and workers may leave.
  void Dismiss();
  // Checks heartbeats and time limits, and tries to form a group.  Call at least every 100 ms.  If a call is late, this
  // process was paused; neither that time nor the time while a worker's messages are unread counts as its silence.
  void Tick(absl::Time now);

  State state() const { return state_; }
  int64_t epoch() const { return epoch_; }
  const std::map<WorkerId, Member>& members() const { return members_; }
  // Returns why the group is not ready: "1 of 2 workers registered; none for rank 1", or what the slowest does,
  // "loading weights: 40 %", "copying experts: 40 %", "capturing graphs: 3 of 17" …; empty if it is.
  std::string NotReadyReason() const;
  // Time when a worker last registered, made progress or became ready; before that, of the first NoteStart.
  absl::Time last_progress() const { return last_progress_; }
  void NoteStart(absl::Time now);

 private:
  struct Step {
    absl::Time begun;  // when it was sent, or the step before it was done
    absl::Duration limit;
    int64_t rows = 0;
    int missing = 0;
    batching::StepResult result;
    std::vector<bool> have;  // [R]
  };

  // worker_group.cc
  absl::Duration LimitOf(int64_t rows) const;
  Member* Find(WorkerId id);
  void GoDown(const std::string& reason, absl::Time now, absl::Duration pause);
  void Forgive(absl::Duration pause, absl::Time now);

  // worker_group_forming.cc
  absl::Status CheckCompatible(const fleet::WorkerInfo& info) const;
  void AdoptOwn(const fleet::WorkerInfo& info, absl::Time now);
  void TryForm(absl::Time now);
  void AssignRanks();
  std::string AddressFromElsewhere() const;
  std::string MissingRanks() const;
  // "0, 2": the ranks for which `have` [R] is false.
  static std::string RanksWithout(const std::vector<bool>& have);

  const Options options_;
  Listener* const listener_;
  State state_ = State::kWaiting;
  int64_t epoch_ = 0;
  std::map<WorkerId, Member> members_;
  std::vector<Step> steps_;  // in flight, oldest first
  absl::Time joining_since_;
  absl::Time last_progress_ = absl::InfinitePast();
  absl::Time next_try_ = absl::InfinitePast();
  int failed_tries_ = 0;
  int64_t broken_epoch_ = 0;  // the last that Break ended without a loss that explains it
  bool dismissed_ = false;
  ServerStall server_stall_;
  std::unique_ptr<const fleet::WorkerInfo> own_;  // the local worker that registered last; null before
  bool has_served_ = false;                       // a group was ready
  std::string served_weights_;                    // hash of the first group that was ready; empty before
  absl::Duration slowest_row_;                    // of the steps done so far; zero before the first
};

}  // namespace switchyard::server
