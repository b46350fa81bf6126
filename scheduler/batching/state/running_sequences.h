// The ranks of the group with the sequences that hold their slots, and every step of a sequence's life:
//
//   waiting ── Start ──► running ── Finish ──► finished
//      ▲── Preempt ─────────┘
//
// A sequence that leaves a rank while plans in flight name it keeps slot and blocks until ReleaseIfIdle finds that none
// does any more; so a preemption may take effect later than it was asked for.  Thread-compatible; no clock.  Does not
// decide who starts or is preempted (step_planner.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/group_shape.h"
#include "scheduler/batching/rank_state.h"
#include "scheduler/batching/scheduler_stats.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/state/waiting_queue.h"

namespace switchyard::batching {

class RunningSequences {
 public:
  // All borrowed; they outlive this.
  RunningSequences(const BatchingPolicy* policy, RequestTable* requests, WaitingQueue* waiting);

  // [R]; empty: there is no group.
  absl::Span<RankState> ranks() { return absl::MakeSpan(ranks_); }
  // The last one; epoch 0 before the first.
  const GroupShape& group() const { return group_; }
  // Prompt + outputs that one sequence can have: max_model_len, or less where a rank's pool holds less.
  int32_t max_context() const { return max_context_; }
  // Whether its blocks may come from the prefix cache.
  bool MayReuse(const Sequence& sequence) const { return policy_->prefix_reuse && sequence.MayBeCached(); }

  // Takes it from the queue; gives it a slot of the rank, and the blocks of the match.
  void Start(Sequence* sequence, int32_t rank, const PrefixMatch& match, absl::Time now);
  // Puts it back into the queue, at once or as soon as nothing of it is in flight.
  void Preempt(Sequence* sequence);
  // Makes the blocks findable that all its planned steps have filled.
  void PublishComputed(Sequence* sequence);
  // Ends it, wherever it is, and says so.  May destroy it.
  void Finish(Sequence* sequence, FinishReason reason, absl::Time now, std::vector<Event>* events);
  // Gives back what a sequence held for plans in flight, once there are none.  May destroy it.
  void ReleaseIfIdle(Sequence* sequence);

  // Scheduler::LoseGroup and StartGroup, with no plan in flight any more.
  void LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events);
  void StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events);

  // With what is known here; the rest is left at zero.
  SchedulerStats Stats() const;
  // Aborts if queue, slots, block tables and reference counts disagree.  For tests: linear in everything.
  void CheckInvariants() const;

 private:
  void PreemptNow(Sequence* sequence);

  const BatchingPolicy* const policy_;
  RequestTable* const requests_;
  WaitingQueue* const waiting_;
  GroupShape group_;
  int32_t max_context_;
  std::vector<RankState> ranks_;  // [R]
  SchedulerStats totals_;         // only its totals are kept up
};

}  // namespace switchyard::batching
