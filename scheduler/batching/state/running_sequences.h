// The ranks of the group with the sequences that hold their slots, and every step of a sequence's life:
//
//   waiting ── Start ──► running ── Finish ──► finished
//      ▲── Preempt ─────────┘
//
// A sequence that leaves a rank keeps slot and blocks until no plan in flight names it (ReleaseIfIdle), so a preemption
// may take effect later.  Thread-compatible; no clock.  step_planner.h decides who starts or is preempted.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/block_pool.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/mask_request.h"
#include "scheduler/batching/scheduler_stats.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/state/waiting_queue.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

// The scheduler's state of one rank: its pool, its slots, and the sequences that run there.  Plain state.
struct RankState {
  RankState(int32_t num_slots, int32_t num_blocks, int32_t block_size);

  // Adds to `running`, in order of arrival.
  void Insert(Sequence* sequence);
  void Erase(Sequence* sequence);
  // The sequence gives its slot and blocks back.  REQUIRES: nothing in flight.
  void Release(Sequence* sequence);

  BlockPool pool;
  std::vector<Sequence*> running;      // by arrival; not the finished ones
  absl::btree_set<SlotId> free_slots;  // the lowest is taken first
  std::vector<SlotId> freed_slots;     // since the last plan: travel with the next one
  int32_t num_leaving = 0;             // sequences that give blocks back as soon as nothing of them is in flight
};

class RunningSequences {
 public:
  RunningSequences(const BatchingPolicy* policy, RequestTable* requests, WaitingQueue* waiting);

  // [R]; empty: there is no group.
  absl::Span<RankState> ranks() { return absl::MakeSpan(ranks_); }
  // The last one; epoch 0 before the first.
  const GroupShape& group() const { return group_; }
  // Prompt + outputs that one sequence can have: max_model_len, or less where a rank's pool holds less.
  int32_t max_context() const { return max_context_; }
  bool MayReuse(const Sequence& sequence) const { return policy_->prefix_reuse && sequence.MayBeCached(); }

  // Of plans in flight, those of suspects, also of such as have ended meanwhile; kept by planner and committer.
  int32_t suspect_items = 0;
  // Of masks that are to be made elsewhere, and nobody has asked for yet.
  std::vector<MaskRequest> mask_requests;

  // Takes it from the queue; gives it a slot of the rank, and the blocks of the match.
  void Start(Sequence* sequence, int32_t rank, const PrefixMatch& match, absl::Time now);
  // Puts it back into the queue, at once or as soon as nothing of it is in flight.
  void Preempt(Sequence* sequence);
  // Finds the mask of a constrained sequence's next output, or asks for it.  `mask_work`: Sequence::FindMask's.
  void FindMask(Sequence* sequence, int64_t* mask_work);
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

 private:
  friend struct Invariants;  // of tests
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
