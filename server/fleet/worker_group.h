// The group of workers that serves: who is in it, since which epoch, and whether it is whole.
//
//   kWaiting ── all assignments taken ──► kJoining ── all ready ──► kReady
//      ▲──── a member is lost, faults, is too slow or falls silent ────┘
//
// A returning group always has a new epoch; what carries an old one is dropped.  Survivors keep their rank (and with it
// their loaded experts); a newcomer gets the assignment that is free.  What a group once served it serves until the
// server ends: workers with other weights are refused even when no member is left.  Before that the server's own
// workers say what is served (weights, ISA, dtype), and one from elsewhere that comes before them is told to try
// again: it must not shut them out by being faster.  Without own workers the first that registers says it.  A worker
// that stops answering is fenced: its link is closed, the others are told to abort their collectives, and whatever it
// says later belongs to an old epoch.
//
// No thread, clock or socket of its own: the engine loop owns it and calls it with the time.  Everything that happens
// is reported through Listener, synchronously.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/admission/join_tokens.h"
#include "server/fleet/server_stall.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class WorkerGroup {
 public:
  struct Options {
    int world = 1;
    int local_workers = 0;       // started by this server; they say what all others must be
    std::string dtype = "auto";  // that all must compute in; auto: whatever they agree on
    JoinTokens tokens;
    absl::Duration suspect_after = absl::Seconds(1);
    absl::Duration fence_after = absl::Milliseconds(1500);
    absl::Duration form_timeout = absl::Seconds(30);  // for joining, while no loading makes progress
    // A step may take step_timeout and, for each of its rows, row_timeout; once steps were measured, a multiple of the
    // slowest one's time per row is enough for a row, if that is less.
    absl::Duration step_timeout = absl::Seconds(120);
    absl::Duration row_timeout = absl::Seconds(1);
  };

  class Listener {
   public:
    virtual ~Listener() = default;
    // A store for the epoch's rendezvous is needed under this token; the last one's can go.
    virtual void OnEpoch(const std::string& store_token) = 0;
    // A group forms of these workers, of one model: where its experts are when it begins.
    virtual placement::GroupPlacement OnForming(const std::vector<fleet::WorkerInfo>& workers) = 0;
    virtual void OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first) = 0;
    // `reason` is for clients, too: ranks, no processes or addresses.
    virtual void OnGroupDown(const std::string& reason) = 0;
    virtual void OnStepDone(const batching::StepResult& result) = 0;
    // Whether something that it said has not been read yet.  May be asked often.
    virtual bool HasUnread(const fleet::WorkerInfo&) { return false; }
    // A worker that this server started does not answer: kill it.
    virtual void OnLocalWorkerFenced(int local_index, int64_t pid) = 0;
  };

  enum class State { kWaiting, kJoining, kReady };

  struct Member {
    WorkerId id = 0;
    std::shared_ptr<WorkerClient> client;  // shared with the gRPC stream that it is
    fleet::WorkerInfo info;
    int rank = -1;  // -1: no assignment yet
    absl::Time last_seen;
    bool suspect = false;
    bool ready = false;
    int32_t num_kv_blocks = 0;
    int64_t load_done = 0;
    int64_t load_total = 0;
  };

  WorkerGroup(Options options, Listener* listener);

  // Whether this server started it.
  bool IsOwn(const fleet::WorkerInfo& info) const;

  // What workers tell.  An error refuses the worker: the caller closes its link with it.
  absl::Status Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info, absl::Time now);
  void Heartbeat(WorkerId id, absl::Time now);
  void LoadProgress(WorkerId id, int64_t done, int64_t total, absl::Time now);
  void Ready(WorkerId id, int64_t epoch, int32_t num_kv_blocks, absl::Time now);
  void Fault(WorkerId id, int64_t epoch, const std::string& message, absl::Time now);
  void Lost(WorkerId id, const std::string& reason, absl::Time now);
  void Result(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result, absl::Time now);

  // Closes the link of a member that turned out to be wrong; it is none any more.
  void Evict(WorkerId id, const absl::Status& status, absl::Time now);

  // Sends a plan to every rank.  REQUIRES: kReady.
  void Execute(const batching::StepPlan& plan, absl::Time now);
  // Training on the ranks may run for so long, or until the next plan.  REQUIRES: kReady.
  void GiveSlice(absl::Duration slice);
  // The group cannot go on for a reason that the engine found (a result that does not fit).
  void Break(const std::string& reason, absl::Time now);
  // The server stops: no more plans and groups, and a member that goes is no loss.
  void Dismiss();
  // Heartbeats, time limits, another try at forming.  Call at least every 100 ms.  When it comes late, the process
  // stood still, and nobody is blamed for what it did not read meanwhile; nor is a worker for silence while what it
  // said lies unread.
  void Tick(absl::Time now);

  State state() const { return state_; }
  int64_t epoch() const { return epoch_; }
  const std::map<WorkerId, Member>& members() const { return members_; }
  // Why it is not ready: "1 of 2 workers registered; none for rank 1", "loading: 40 %" …; empty when ready.
  std::string NotReadyReason() const;
  // When a worker last registered, loaded something or became ready; first the time of the first NoteStart.
  absl::Time last_progress() const { return last_progress_; }
  void NoteStart(absl::Time now);

 private:
  struct Step {
    int64_t step = 0;
    absl::Time begun;  // sent, or the step before it done
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
  void Remove(WorkerId id);

  // worker_group_forming.cc
  absl::Status CheckCompatible(const fleet::WorkerInfo& info) const;
  void AdoptOwn(const fleet::WorkerInfo& info, absl::Time now);
  void TryForm(absl::Time now);
  void AssignRanks();
  std::string AddressFromElsewhere() const;
  std::string MissingRanks() const;

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
  bool dismissed_ = false;
  ServerStall server_stall_;
  std::unique_ptr<const fleet::WorkerInfo> own_;  // the last of the server's own workers that registered; null before
  bool has_served_ = false;                       // a group was ready
  std::string served_weights_;                    // hash of the first group that was ready; empty before
  absl::Duration slowest_row_;                    // of the steps done so far; zero before the first
};

}  // namespace switchyard::server
