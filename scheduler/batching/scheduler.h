// The batching scheduler: decides, step by step, which tokens of which sequences every rank computes.
//
// Pure: no clock, thread, socket or randomness; `now` is an argument, equal calls give equal plans.  Thread-compatible:
// one owner (the server's engine loop) at a time.  Never blocks.  Knows no text: stop strings are the server's business
// (it calls Cancel with kStop).  The server's loop:
//
//   scheduler.Submit(request, now)                     as requests come
//   while (auto plan = scheduler.Plan(now, &events))   up to policy.max_in_flight plans
//     send *plan to every rank
//   scheduler.Commit(result, now, &events)             results, oldest plan first
//   publish events
//   scheduler.LoseGroup(...), StartGroup(...)          when workers are lost, when a new group has formed
//
// Order of work.  Each step, on each rank: decodes, then prefills already begun, then the queue in order of arrival;
// nobody in the queue is overtaken, but by others while it waits for its own request's choice 0 to compute the prompt
// that they share.  A new sequence goes, among the ranks with a free slot, blocks and budget, to the one that holds the
// most of it in the prefix cache (a rank that runs more than policy.max_prefix_imbalance sequences above the least
// loaded counts as holding nothing); among equals to the one with the fewest sequences, then used blocks, then the
// lowest.
//
// Out of blocks.  The sequence that arrived last on the rank is preempted: its blocks go back (full ones stay findable
// by hash until they are reused), it returns to the queue in its old order with all its tokens and is computed again.
// The oldest of a rank is never preempted for want of blocks, so everything ends.
//
// In flight.  A decode may be planned before the token that it feeds is known.  Commit drops what was computed past a
// sequence's end.  Slot and blocks of a sequence are released only when no plan in flight refers to it; a preemption
// waits for that, too, so no token is lost or computed twice.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/rank_state.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/batching/step.h"

namespace switchyard {

struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;      // `choice` is filled in by the scheduler; ignore_eos: leave stop_ids empty
  int32_t num_choices = 1;      // n; logprobs and experts of the prompt come with choice 0 only
  int32_t max_tokens = 1;       // outputs of each choice, >= 1; the context may end them earlier (kLength)
  absl::Time deadline = absl::InfiniteFuture();
  std::string cache_salt;  // tenants of different salts never share KV blocks
  uint64_t adapter = 0;
};

// A group of workers, ready to take step 1.
struct GroupShape {
  int64_t epoch = 0;  // larger than any before
  int32_t num_ranks = 1;
  int32_t num_blocks = 0;  // of each rank's pool
  uint64_t weights_version = 0;
  // longrope rotates the keys of a prompt of more tokens than this otherwise than those of any other sequence, so the
  // two share no blocks.  0 = all prompts are alike.
  int32_t long_rope_above = 0;
  bool may_lend = true;         // false: these workers lend no rows, whatever the policy says
  int32_t expert_path_ids = 0;  // MoE layers x top_k: what a row's experts are, where they are asked for
  int32_t min_loan_rows = 0;    // what policy.min_loan_rows = -1 stands for: from how many rows on loans pay here
};

struct RankStats {
  int32_t running = 0;
  int32_t blocks_total = 0;
  int32_t blocks_used = 0;    // referenced by sequences
  int32_t blocks_cached = 0;  // not referenced, but findable by hash
};

struct SchedulerStats {
  int32_t running = 0;           // sequences that hold a slot and are not finished
  int32_t waiting = 0;           // sequences in the queue, preempted ones included
  int32_t waiting_requests = 0;  // requests with a choice in the queue
  int64_t waiting_tokens = 0;
  int32_t in_flight = 0;  // plans
  std::vector<RankStats> ranks;
  // Totals since construction:
  int64_t submitted = 0;  // requests accepted
  int64_t refused = 0;    // requests refused because the queue was full
  int64_t preemptions = 0;
  int64_t rows_lent = 0;
  int64_t prefix_query_tokens = 0;                    // known tokens of sequences when they were started with reuse
  int64_t prefix_hit_tokens = 0;                      // of those, found
  int64_t evictions = 0;                              // cached blocks that were given a new content
  int64_t prompt_tokens = 0;                          // of sequences whose prompt was computed
  int64_t generated_tokens = 0;                       // token events
  std::array<int64_t, kNumFinishReasons> finished{};  // sequences, by FinishReason

  double KvUsage() const;  // 0..1: used blocks / all blocks
};

class Scheduler {
 public:
  static constexpr int32_t kAllChoices = -1;

  // REQUIRES: policy.Validate() is OK.  There is no group yet: requests queue, Plan gives nothing.
  explicit Scheduler(BatchingPolicy policy);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request; consumed also on error.
  //   ResourceExhausted: the queue is full; RetryAfter() says when to try again.
  //   InvalidArgument: empty prompt, n or max_tokens < 1, or prompt + 1 token exceeds max_context().
  //   AlreadyExists: a request of that id has not finished.
  absl::Status Submit(Request request, absl::Time now);

  // Ends a request (or one choice of it) for `reason`: kStop for a stop string, else kAbort, kDeadline, kError.  Adds
  // the finished events.  Tokens still in flight are dropped.  Unknown or finished ids: returns false, nothing happens.
  bool Cancel(RequestId id, int32_t choice, FinishReason reason, absl::Time now, std::vector<Event>* events);

  // First ends what is past its deadline (queued or running: finished events).  Then returns the next step, or nullopt:
  // nothing to compute, no group, or max_in_flight plans are out.  placement_epoch and micro_batches are left at their
  // defaults: the caller's.
  std::optional<StepPlan> Plan(absl::Time now, std::vector<Event>* events);

  // Takes the result of the oldest plan in flight.
  //   FailedPrecondition: another epoch, or nothing in flight (a late result: drop it).
  //   Internal: it does not fit the plan (the worker is at fault: lose the group).
  // On error nothing has changed.
  absl::Status Commit(const StepResult& result, absl::Time now, std::vector<Event>* events);

  // The group is gone: plans in flight are forgotten, running sequences end with kUnavailable, and so do queued ones if
  // `fail_waiting`; caches are empty.  Until StartGroup, Plan gives nothing.
  void LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events);

  // A new group takes over (after LoseGroup, which is implied with fail_waiting = false).  Queued sequences that cannot
  // fit its pools end with kUnavailable.  REQUIRES: num_ranks >= 1, num_blocks >= 1, epoch larger than before.
  void StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events);

  // The earliest deadline of all requests: call Plan then, at the latest.  InfiniteFuture if there is none.
  absl::Time NextDeadline() const;
  // How long a refused client should wait: the recent mean time between finished requests, within 50 ms … 10 s.
  absl::Duration RetryAfter() const;
  // Prompt + outputs that one sequence can have: max_model_len, or less where a rank's pool holds less.
  int32_t max_context() const { return max_context_; }
  // No request unfinished and no plan in flight.
  bool Idle() const { return requests_.empty() && in_flight_.empty(); }
  bool has_group() const { return !ranks_.empty(); }
  const BatchingPolicy& policy() const { return policy_; }
  SchedulerStats Stats() const;
  // Aborts if queues, slots, block tables and reference counts disagree.  For tests: linear in everything.
  void CheckInvariants() const;

 private:
  struct RequestState {
    std::vector<Sequence*> choices;  // [n]; nullptr = finished
    int32_t num_unfinished = 0;
    int32_t num_waiting = 0;
    absl::Time deadline = absl::InfiniteFuture();
  };
  struct ItemRef {
    Sequence* sequence = nullptr;
    int32_t start_pos = 0;
    int32_t num_query = 0;
    bool sample = false;
    int32_t num_prompt_logprobs = 0;  // that the result must bring
    int32_t first_path = 0;           // of whose rows it must bring the experts, up to the last; its end = of none
  };
  struct InFlight {
    int64_t step = 0;
    std::vector<std::vector<ItemRef>> ranks;  // as StepPlan::ranks[].items
  };
  // A plan in the making.
  struct Draft {
    absl::Time now;
    StepPlan plan;
    InFlight refs;
    std::vector<int32_t> budget;  // [R] rows left
  };
  // Where a waiting sequence could start.
  struct Placement {
    int32_t rank = -1;  // -1: nowhere
    PrefixMatch match;
  };

  // scheduler.cc: arrival, end, and the group
  absl::Status CheckRequest(const Request& request) const;
  absl::Status CheckQueue(const Request& request);
  void AddSequence(const Request& request, int32_t choice, absl::Time now, RequestState* state);
  void ExpireDeadlines(absl::Time now, std::vector<Event>* events);
  // May destroy the sequence.
  void FinishSequence(Sequence* sequence, FinishReason reason, absl::Time now, std::vector<Event>* events);
  bool IsLong(int64_t num_prompt_tokens) const { return long_rope_above_ > 0 && num_prompt_tokens > long_rope_above_; }
  void ForgetChoice(const Sequence& sequence, absl::Time now);
  void Enqueue(Sequence* sequence);
  void Dequeue(Sequence* sequence);

  // scheduler_plan.cc
  void PreemptForVerification();
  void PlanRunning(int32_t rank, bool decodes, Draft* draft);
  void PlanWaiting(Draft* draft);
  bool HeldForLeader(const Sequence& sequence) const;
  bool MayReuse(const Sequence& sequence) const;
  Placement Place(const Sequence& sequence, const Draft& draft, absl::Span<const int32_t> outstanding) const;
  void StartSequence(Sequence* sequence, const Placement& placement, Draft* draft);
  bool MakeRoom(const Sequence& sequence, int32_t num_blocks);
  void RequestPreemption(Sequence* sequence);
  void PreemptNow(Sequence* sequence);
  int32_t ChunkOf(const Sequence& sequence, int32_t budget) const;
  int32_t BlocksFor(int32_t num_positions) const;
  void AddItem(Sequence* sequence, int32_t num_query, Draft* draft);
  static bool IsPlainDecodes(const Draft& draft);
  static bool TellsPaths(const Draft& draft);
  StepPlan Seal(Draft draft);
  void PublishComputed(Sequence* sequence);

  // scheduler_commit.cc
  absl::Status CheckResult(const StepResult& result) const;
  void CommitItem(const ItemRef& ref, const ItemResult& result, absl::Time now, std::vector<Event>* events);
  absl::Status CheckItem(const ItemRef& ref, const ItemResult& item) const;
  void EmitPromptLogprobs(const ItemRef& ref, const ItemResult& result, std::vector<Event>* events);
  void EmitExpertPaths(const ItemRef& ref, const ItemResult& result, std::vector<Event>* events);
  // Gives back what a sequence held for plans in flight, once there are none.  May destroy it.
  void ReleaseIfIdle(Sequence* sequence);

  const BatchingPolicy policy_;
  int32_t max_context_ = 0;
  int64_t group_epoch_ = 0;
  uint64_t weights_version_ = 0;
  int32_t long_rope_above_ = 0;
  int32_t min_loan_rows_ = 0;
  int32_t expert_path_ids_ = 0;
  int64_t next_step_ = 1;
  uint64_t next_arrival_ = 1;
  std::vector<RankState> ranks_;  // [R]
  absl::flat_hash_map<RequestId, RequestState> requests_;
  absl::flat_hash_map<const Sequence*, std::unique_ptr<Sequence>> sequences_;  // finished ones while in flight
  absl::btree_map<uint64_t, Sequence*> waiting_;                               // by arrival
  absl::btree_set<std::pair<absl::Time, RequestId>> deadlines_;
  std::deque<InFlight> in_flight_;
  int64_t waiting_tokens_ = 0;
  int32_t waiting_requests_ = 0;
  absl::Time last_finish_ = absl::InfinitePast();
  absl::Duration mean_finish_interval_ = absl::Seconds(1);
  SchedulerStats totals_;  // only its totals are kept up
};

}  // namespace switchyard
