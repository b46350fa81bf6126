#include "scheduler/batching/state/running_sequences.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::batching {

RankState::RankState(int32_t num_slots, int32_t num_blocks, int32_t block_size) : pool(num_blocks, block_size) {
  for (SlotId slot = 0; slot < num_slots; ++slot) free_slots.insert(slot);
}

void RankState::Insert(Sequence* sequence) {
  const auto at = std::upper_bound(running.begin(), running.end(), sequence,
                                   [](const Sequence* a, const Sequence* b) { return a->arrival() < b->arrival(); });
  running.insert(at, sequence);
}

void RankState::Erase(Sequence* sequence) {
  const auto at = std::find(running.begin(), running.end(), sequence);
  SY_CHECK(at != running.end());
  running.erase(at);
}

void RankState::Release(Sequence* sequence) {
  SY_CHECK_EQ(sequence->num_in_flight(), 0);
  pool.Rollback(&sequence->block_table, 0);
  free_slots.insert(sequence->slot);
  freed_slots.push_back(sequence->slot);
  sequence->slot = -1;
  sequence->rank = -1;
  sequence->num_published = 0;
  sequence->published_content = 0;
  sequence->sent_blocks = 0;
}

RunningSequences::RunningSequences(const BatchingPolicy* policy, RequestTable* requests, WaitingQueue* waiting)
    : policy_(policy), requests_(requests), waiting_(waiting), max_context_(policy->max_model_len) {}

void RunningSequences::Start(Sequence* sequence, int32_t rank_idx, const PrefixMatch& match, absl::Time now) {
  RankState& rank = ranks_[rank_idx];
  waiting_->Remove(sequence);
  const auto slot = rank.free_slots.begin();
  const int32_t num_shared = static_cast<int32_t>(match.blocks.size());
  const int32_t num_cached = num_shared * policy_->block_size;
  if (sequence->timings().first_scheduled == absl::InfinitePast()) {
    totals_.prompt_tokens += sequence->num_prompt_tokens();
  }
  if (MayReuse(*sequence)) {
    totals_.prefix_query_tokens += sequence->num_tokens();
    totals_.prefix_hit_tokens += num_cached;
  }
  sequence->Start(rank_idx, *slot, num_cached, now);
  rank.free_slots.erase(slot);
  rank.pool.Take(match, &sequence->block_table);
  sequence->num_published = num_shared;
  sequence->published_content = match.content;
  rank.Insert(sequence);
}

void RunningSequences::Preempt(Sequence* sequence) {
  if (sequence->num_in_flight() == 0) {
    PreemptNow(sequence);
    return;
  }
  sequence->draining = true;
  ++ranks_[sequence->rank].num_leaving;
}

void RunningSequences::PreemptNow(Sequence* sequence) {
  RankState& rank = ranks_[sequence->rank];
  rank.Erase(sequence);
  rank.Release(sequence);
  sequence->Preempt();
  waiting_->Push(sequence);
  ++totals_.preemptions;
}

void RunningSequences::FindMask(Sequence* sequence, int64_t* mask_work) {
  sequence->FindMask(mask_work);
  if (sequence->mask() != nullptr) return;
  mask_requests.push_back(
      {.key = {.request = sequence->request(), .choice = sequence->choice(), .output = sequence->num_outputs()},
       .task = sequence->TaskOfMask(),
       .wanted = sequence->mask_wanted()});
}

void RunningSequences::PublishComputed(Sequence* sequence) {
  if (!policy_->prefix_reuse) return;
  BlockPool& pool = ranks_[sequence->rank].pool;
  const int32_t num_full = std::min(sequence->num_planned(), sequence->num_tokens()) / policy_->block_size;
  while (sequence->num_published < num_full) {
    const int32_t index = sequence->num_published++;
    sequence->published_content = pool.Publish(sequence->block_table[index], sequence->chain(), sequence->tokens(),
                                               index, sequence->published_content);
  }
}

void RunningSequences::Finish(Sequence* sequence, FinishReason reason, absl::Time now, std::vector<Event>* events) {
  if (sequence->state() == SequenceState::kWaiting) waiting_->Remove(sequence);
  const bool was_draining = sequence->draining;
  sequence->Finish(reason, now);
  events->push_back({.request = sequence->request(),
                     .choice = sequence->choice(),
                     .what = FinishedEvent{reason, sequence->Usage(), sequence->timings()}});
  ++totals_.finished[static_cast<int>(reason)];
  requests_->Finish(*sequence, now);
  if (sequence->rank < 0) {
    requests_->Destroy(sequence);
    return;
  }
  RankState& rank = ranks_[sequence->rank];
  rank.Erase(sequence);
  if (!was_draining) ++rank.num_leaving;
  ReleaseIfIdle(sequence);
}

void RunningSequences::ReleaseIfIdle(Sequence* sequence) {
  if (sequence->num_in_flight() > 0) return;
  RankState& rank = ranks_[sequence->rank];
  if (sequence->state() == SequenceState::kFinished) {
    --rank.num_leaving;
    rank.Release(sequence);
    requests_->Destroy(sequence);
  } else if (sequence->draining) {
    --rank.num_leaving;
    PreemptNow(sequence);
  }
}

void RunningSequences::LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events) {
  suspect_items = 0;
  std::vector<Sequence*> lost;
  for (RankState& rank : ranks_) lost.insert(lost.end(), rank.running.begin(), rank.running.end());
  if (fail_waiting) {
    for (Sequence* s = waiting_->After(0); s != nullptr; s = waiting_->After(s->arrival())) lost.push_back(s);
  }
  for (RankState& rank : ranks_) totals_.evictions += rank.pool.num_evictions();
  ranks_.clear();
  requests_->DestroyFinished();
  std::sort(lost.begin(), lost.end(), [](const Sequence* a, const Sequence* b) { return a->arrival() < b->arrival(); });
  for (Sequence* sequence : lost) {
    if (sequence->state() == SequenceState::kWaiting) {
      Finish(sequence, FinishReason::kUnavailable, now, events);
      continue;
    }
    sequence->LoseRank();
    if (fail_waiting || sequence->num_losses() > policy_->max_losses) {
      Finish(sequence, FinishReason::kUnavailable, now, events);
    } else {
      sequence->Requeue();
      waiting_->Push(sequence);
      ++totals_.outlived_losses;
    }
  }
}

void RunningSequences::StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events) {
  SY_CHECK_GE(group.num_ranks, 1);
  SY_CHECK_GE(group.num_blocks, 1);
  SY_CHECK_GT(group.epoch, group_.epoch);
  LoseGroup(/*fail_waiting=*/false, now, events);
  const bool other_bits = group.numerics != group_.numerics;
  group_ = group;
  const int64_t pool_tokens = int64_t{group.num_blocks} * policy_->block_size;
  max_context_ = static_cast<int32_t>(std::min<int64_t>(policy_->max_model_len, pool_tokens));
  ranks_.reserve(group.num_ranks);
  for (int32_t r = 0; r < group.num_ranks; ++r) {
    ranks_.emplace_back(policy_->max_num_seqs, group.num_blocks, policy_->block_size);
  }
  std::vector<std::pair<Sequence*, FinishReason>> misfits;
  for (Sequence* s = waiting_->After(0); s != nullptr; s = waiting_->After(s->arrival())) {
    waiting_->Remove(s);
    s->JudgeLoss(group.lost_from_outside);
    waiting_->Push(s);
    if (s->losses_in_a_row() > Sequence::kSuspectAfter) {
      misfits.emplace_back(s, FinishReason::kPoisoned);
    } else if (s->WantsMore(max_context_) && !(other_bits && s->has_delivered())) {
      s->SetGroup(group.weights_version, group.IsLong(s->num_prompt_tokens()));
    } else {
      misfits.emplace_back(s, FinishReason::kUnavailable);
    }
  }
  for (const auto& [sequence, reason] : misfits) Finish(sequence, reason, now, events);
}

SchedulerStats RunningSequences::Stats() const {
  SchedulerStats stats = totals_;
  stats.waiting = waiting_->size();
  stats.waiting_requests = waiting_->num_requests();
  stats.waiting_tokens = waiting_->num_tokens();
  for (const RankState& rank : ranks_) {
    stats.running += static_cast<int32_t>(rank.running.size());
    stats.evictions += rank.pool.num_evictions();
    stats.ranks.push_back({.running = static_cast<int32_t>(rank.running.size()),
                           .blocks_total = rank.pool.num_blocks(),
                           .blocks_used = rank.pool.num_used(),
                           .blocks_cached = rank.pool.num_cached()});
  }
  return stats;
}

}  // namespace switchyard::batching
