// The batching scheduler: decides, step by step, which tokens of which sequences every rank computes.
//
// Pure: no clock, thread, socket or randomness; `now` is an argument, equal calls give equal plans.  Thread-compatible:
// one owner (the server's engine loop).  Never blocks.  Stop strings are the server's business: it calls Cancel.  The
// server's loop:
//
//   scheduler.Submit(request, now)                     as requests come
//   while (auto plan = scheduler.Plan(now, &events))   up to policy.max_in_flight plans
//     send *plan to every rank
//   while (auto masks = scheduler.NextMasks())         after each of these calls: of plans in flight
//     send *masks to the ranks that they are for
//   scheduler.Commit(result, now, &events)             results, oldest plan first
//   publish events
//   scheduler.LoseGroup(...), StartGroup(...)          when workers are lost, when a new group has formed
//
// Order of work.  Each step, on each rank: decodes, then prefills already begun, then the queue in order of arrival.
// Nobody in the queue is overtaken, except while it waits for its own request's choice 0 to compute the prompt that
// they share.  A new sequence goes, among the ranks with a free slot, blocks and budget, to the one that holds the most
// of it in the prefix cache (policy.max_prefix_imbalance bounds that), then to the one with the fewest sequences, then
// used blocks, then the lowest.
//
// Out of blocks, the sequence that arrived last on the rank is preempted: its blocks go back, it returns to the queue
// in its old order with all its tokens and is computed again.  The oldest of a rank is never preempted for want of
// blocks, so everything ends.
//
// Constraints.  What may come next follows from the token before.  A step is planned without it, while the one before
// is in flight; the masks follow when that one's result is there (NextMasks), and ranks await them where they sample. A
// mask that takes longer than policy.mask_work_at_once is made elsewhere (TakeMaskRequests, SetMask); a sequence whose
// first mask is not made yet waits in the queue, where others overtake it.
//
// In flight.  A decode may be planned before the token that it feeds is known; Commit drops what was computed past a
// sequence's end.  A sequence's slot and blocks are released, also for a preemption, only when no plan in flight refers
// to it, so no token is lost or computed twice.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/mask_request.h"
#include "scheduler/batching/scheduler_stats.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/state/running_sequences.h"
#include "scheduler/batching/state/waiting_queue.h"
#include "scheduler/batching/step.h"
#include "scheduler/batching/step_committer.h"
#include "scheduler/batching/step_planner.h"

namespace switchyard::batching {

class Scheduler {
 public:
  static constexpr int32_t kAllChoices = -1;

  // REQUIRES: policy.Validate() is OK.  There is no group yet: requests queue, Plan gives nothing.
  explicit Scheduler(BatchingPolicy policy);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request; consumed also on error.
  //   ResourceExhausted: the queue is full; RetryAfter() says when to try again.
  //   InvalidArgument: empty prompt, n or max_tokens < 1, or prompt + 1 token exceeds max_context().
  //   FailedPrecondition: no token fits the constraint, or finding those that do takes too long.
  //   AlreadyExists: a request of that id has not finished.
  absl::Status Submit(Request request, absl::Time now);

  // Ends a request (or one choice of it) for `reason`: kStop for a stop string, else kAbort, kDeadline, kError.  Adds
  // the finished events.  Tokens still in flight are dropped.  Unknown or finished ids: returns false, nothing happens.
  bool Cancel(RequestId id, int32_t choice, FinishReason reason, absl::Time now, std::vector<Event>* events);

  // First ends what is past its deadline (finished events).  Then returns the next step, or nullopt: nothing to
  // compute, no group, or max_in_flight plans are out.  The caller sets decides, layer_costs, micro_batches.
  std::optional<StepPlan> Plan(absl::Time now, std::vector<Event>* events);

  // The masks of a plan in flight, when they are all known and were not given out yet.  Call it until nullopt after
  // each Plan, Commit, Cancel and SetMask.
  std::optional<StepMasks> NextMasks() { return committer_.NextMasks(); }
  // The masks to make elsewhere, since the last call.  SetMask must follow for each that is wanted yet.
  std::vector<MaskRequest> TakeMaskRequests() { return std::exchange(running_.mask_requests, {}); }
  // Such a mask is made, or cannot be: then its sequence ends with kConstraint.  Of sequences that are gone: ignored.
  void SetMask(MaskAnswer answer, absl::Time now, std::vector<Event>* events);

  // Takes the result of the oldest plan in flight.
  //   FailedPrecondition: another epoch, or nothing in flight (a late result: drop it).
  //   Internal: it does not fit the plan (the worker is at fault: lose the group).
  // On error nothing has changed.
  absl::Status Commit(const StepResult& result, absl::Time now, std::vector<Event>* events);

  // The group is gone: plans in flight are forgotten, caches are empty.  Running sequences go back to the queue, in
  // their old order with all their tokens; with `fail_waiting` they and all others end with kUnavailable, and so do
  // those that have outlived policy.max_losses.  Until StartGroup, Plan gives nothing.
  //
  // A sequence that was in a plan each time that the group was lost, Sequence::kSuspectAfter times without progress, is
  // a suspect: suspects start before all others and one by one, and nobody else starts until it has made progress.  If
  // the group is lost once more, that one ends with kPoisoned when the next starts.  Losses from outside do not count.
  void LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events);

  // A new group takes over (after LoseGroup, which is implied with fail_waiting = false).  Queued sequences that cannot
  // fit its pools end with kUnavailable, and so do those with outputs if its numerics are others.  REQUIRES: num_ranks
  // >= 1, num_blocks >= 1, epoch larger than before.
  void StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events);

  // The earliest deadline of all requests: call Plan then, at the latest.  InfiniteFuture if there is none.
  absl::Time NextDeadline() const { return requests_.NextDeadline(); }
  // How long a refused client should wait: the recent mean time between finished requests, within 50 ms … 10 s.
  absl::Duration RetryAfter() const { return requests_.RetryAfter(); }
  // Prompt + outputs that one sequence can have: max_model_len, or less where a rank's pool holds less.
  int32_t max_context() const { return running_.max_context(); }
  // No request unfinished and no plan in flight.
  bool Idle() const { return requests_.empty() && committer_.num_in_flight() == 0; }
  const BatchingPolicy& policy() const { return policy_; }
  SchedulerStats Stats() const;

 private:
  friend struct Invariants;  // of tests
  absl::Status CheckRequest(const Request& request) const;
  static absl::Status CheckConstraint(const Request& request);

  const BatchingPolicy policy_;
  RequestTable requests_;
  WaitingQueue waiting_;
  RunningSequences running_;
  StepPlanner planner_;
  StepCommitter committer_;
  int64_t submitted_ = 0, refused_ = 0, refused_for_tokens_ = 0;
};

}  // namespace switchyard::batching
