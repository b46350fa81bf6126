// Scheduler::Plan and what it needs: who computes what in the next step.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/batching/row_loans.h"
#include "scheduler/batching/scheduler.h"

namespace switchyard {

std::optional<StepPlan> Scheduler::Plan(absl::Time now, std::vector<Event>* events) {
  ExpireDeadlines(now, events);
  if (ranks_.empty() || static_cast<int32_t>(in_flight_.size()) >= policy_.max_in_flight) return std::nullopt;
  if (policy_.preempt_every_step) PreemptForVerification();
  Draft draft;
  draft.now = now;
  draft.plan.ranks.resize(ranks_.size());
  draft.refs.ranks.resize(ranks_.size());
  draft.budget.assign(ranks_.size(), policy_.max_batched_tokens);
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    PlanRunning(rank, /*decodes=*/true, &draft);
    PlanRunning(rank, /*decodes=*/false, &draft);
  }
  PlanWaiting(&draft);
  const bool empty = std::all_of(draft.refs.ranks.begin(), draft.refs.ranks.end(),
                                 [](const std::vector<ItemRef>& items) { return items.empty(); });
  if (empty) return std::nullopt;
  return Seal(std::move(draft));
}

// Whoever has an output to show for its residency may be thrown out: so each residency makes progress, and all end.
void Scheduler::PreemptForVerification() {
  Sequence* victim = nullptr;
  for (const RankState& rank : ranks_) {
    for (Sequence* sequence : rank.running) {
      if (sequence->draining || sequence->num_outputs() == sequence->outputs_at_start) continue;
      const auto order = [](const Sequence& s) { return std::tuple(-s.Usage().preemptions, s.arrival()); };
      if (victim == nullptr || order(*sequence) > order(*victim)) victim = sequence;
    }
  }
  if (victim != nullptr) RequestPreemption(victim);
}

void Scheduler::PlanRunning(int32_t rank_idx, bool decodes, Draft* draft) {
  RankState& rank = ranks_[rank_idx];
  const std::vector<Sequence*> running = rank.running;  // a copy: making room takes sequences out
  for (Sequence* sequence : running) {
    const int32_t budget = draft->budget[rank_idx];
    if (budget == 0) return;
    if (sequence->state() != SequenceState::kRunning || sequence->draining) continue;
    if ((sequence->num_to_compute() == 1) != decodes || !sequence->WantsMore(max_context_)) continue;
    const int32_t num_query = ChunkOf(*sequence, budget);
    const int32_t num_new =
        BlocksFor(sequence->num_planned() + num_query) - static_cast<int32_t>(sequence->block_table.size());
    if (num_new > 0) {
      if (!MakeRoom(*sequence, num_new)) continue;
      SY_CHECK(rank.pool.Allocate(num_new, &sequence->block_table));
    }
    AddItem(sequence, num_query, draft);
  }
}

void Scheduler::PlanWaiting(Draft* draft) {
  if (waiting_.empty()) return;
  // Blocks that running sequences still need for the tokens they already have: a newcomer must not take those.
  std::vector<int32_t> outstanding(ranks_.size(), 0);
  const auto owed = [this](const Sequence& s) {
    return std::max(0, BlocksFor(s.num_tokens()) - static_cast<int32_t>(s.block_table.size()));
  };
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (const Sequence* sequence : ranks_[r].running) {
      if (!sequence->draining) outstanding[r] += owed(*sequence);
    }
  }
  uint64_t last = 0;
  for (auto next = waiting_.begin(); next != waiting_.end(); next = waiting_.upper_bound(last)) {
    last = next->first;
    Sequence* sequence = next->second;
    if (HeldForLeader(*sequence)) continue;
    const Placement placement = Place(*sequence, *draft, outstanding);
    if (placement.rank < 0) return;  // nobody overtakes
    StartSequence(sequence, placement, draft);
    outstanding[placement.rank] += owed(*sequence);
  }
}

bool Scheduler::MayReuse(const Sequence& sequence) const { return policy_.prefix_reuse && sequence.MayBeCached(); }

// While choice 0 computes the prompt, the others wait to share its blocks instead of computing their own.
bool Scheduler::HeldForLeader(const Sequence& sequence) const {
  if (sequence.choice() == 0 || !MayReuse(sequence)) return false;
  const Sequence* leader = requests_.at(sequence.request()).choices[0];
  if (leader == nullptr || leader->state() != SequenceState::kRunning) return false;
  return leader->num_published < (leader->num_prompt_tokens() - 1) / policy_.block_size;
}

Scheduler::Placement Scheduler::Place(const Sequence& sequence, const Draft& draft,
                                      absl::Span<const int32_t> outstanding) const {
  const int32_t num_tokens = sequence.num_tokens();
  const int32_t max_shared = MayReuse(sequence) ? sequence.MostCached() / policy_.block_size : 0;
  std::vector<Placement> places;
  size_t fewest = std::numeric_limits<size_t>::max();
  for (int32_t r = 0; r < static_cast<int32_t>(ranks_.size()); ++r) {
    const RankState& rank = ranks_[r];
    if (rank.free_slots.empty() || draft.budget[r] == 0) continue;
    PrefixMatch match = rank.pool.Lookup(sequence.chain(), sequence.tokens(), max_shared);
    const int32_t num_new = BlocksFor(num_tokens) - static_cast<int32_t>(match.blocks.size());
    // One block of growth for each that runs: else the newcomer would be preempted in the next steps.
    const int32_t headroom = static_cast<int32_t>(rank.running.size());
    if (num_new + headroom > rank.pool.num_free() - match.num_unreferenced - outstanding[r]) continue;
    fewest = std::min(fewest, rank.running.size());
    places.push_back({r, std::move(match)});
  }
  const auto order = [this, fewest](const Placement& place) {
    const RankState& rank = ranks_[place.rank];
    const bool attracts = rank.running.size() - fewest <= static_cast<size_t>(policy_.max_prefix_imbalance);
    return std::tuple(attracts ? -static_cast<int64_t>(place.match.blocks.size()) : 0, rank.running.size(),
                      rank.pool.num_used(), place.rank);
  };
  const auto best = std::min_element(places.begin(), places.end(),
                                     [&order](const Placement& a, const Placement& b) { return order(a) < order(b); });
  return best == places.end() ? Placement() : std::move(*best);
}

void Scheduler::StartSequence(Sequence* sequence, const Placement& placement, Draft* draft) {
  RankState& rank = ranks_[placement.rank];
  Dequeue(sequence);
  const auto slot = rank.free_slots.begin();
  const int32_t num_shared = static_cast<int32_t>(placement.match.blocks.size());
  const int32_t num_cached = num_shared * policy_.block_size;
  if (sequence->timings().first_scheduled == absl::InfinitePast()) {
    totals_.prompt_tokens += sequence->num_prompt_tokens();
  }
  if (MayReuse(*sequence)) {
    totals_.prefix_query_tokens += sequence->num_tokens();
    totals_.prefix_hit_tokens += num_cached;
  }
  sequence->Start(placement.rank, *slot, num_cached, draft->now);
  rank.free_slots.erase(slot);
  rank.pool.Take(placement.match, &sequence->block_table);
  sequence->num_published = num_shared;
  sequence->published_content = placement.match.content;
  rank.Insert(sequence);
  const int32_t num_query = ChunkOf(*sequence, draft->budget[placement.rank]);
  SY_CHECK(rank.pool.Allocate(BlocksFor(num_cached + num_query) - num_shared, &sequence->block_table));
  AddItem(sequence, num_query, draft);
}

// Preempts the sequences that arrived last until `num_blocks` are free.  False: they will be free later, when plans in
// flight have come back, or `sequence` itself was the last.
bool Scheduler::MakeRoom(const Sequence& sequence, int32_t num_blocks) {
  RankState& rank = ranks_[sequence.rank];
  while (rank.pool.num_free() < num_blocks) {
    if (rank.num_leaving > 0) return false;
    // Alone it always fits: max_context_ tokens need no more than the whole pool.
    SY_CHECK_GT(rank.running.size(), 1u);
    Sequence* victim = rank.running.back();
    RequestPreemption(victim);
    if (victim == &sequence) return false;
  }
  return true;
}

void Scheduler::RequestPreemption(Sequence* sequence) {
  if (sequence->num_in_flight() == 0) {
    PreemptNow(sequence);
    return;
  }
  sequence->draining = true;
  ++ranks_[sequence->rank].num_leaving;
}

void Scheduler::PreemptNow(Sequence* sequence) {
  RankState& rank = ranks_[sequence->rank];
  rank.Erase(sequence);
  rank.Release(sequence);
  sequence->Preempt();
  Enqueue(sequence);
  ++totals_.preemptions;
}

int32_t Scheduler::ChunkOf(const Sequence& sequence, int32_t budget) const {
  const int32_t chunk = policy_.prefill_chunk > 0 ? policy_.prefill_chunk : std::numeric_limits<int32_t>::max();
  return std::min({sequence.num_to_compute(), budget, chunk});
}

int32_t Scheduler::BlocksFor(int32_t num_positions) const {
  return (num_positions + policy_.block_size - 1) / policy_.block_size;
}

void Scheduler::AddItem(Sequence* sequence, int32_t num_query, Draft* draft) {
  const int32_t rank = sequence->rank;
  StepItem item;
  item.slot = sequence->slot;
  item.start_pos = sequence->num_planned();
  item.num_query = num_query;
  item.sample = num_query == sequence->num_to_compute();
  if (sequence->sent_blocks == 0) item.init = sequence->MakeSlotInit();
  item.new_blocks.assign(sequence->block_table.begin() + sequence->sent_blocks, sequence->block_table.end());
  sequence->sent_blocks = static_cast<int32_t>(sequence->block_table.size());
  ItemRef ref{.sequence = sequence, .start_pos = item.start_pos, .num_query = num_query, .sample = item.sample};
  if (sequence->sampling().num_prompt_logprobs >= 0 && sequence->NeedsPromptLogprobs()) {
    const int32_t last = std::min(item.start_pos + num_query, sequence->num_prompt_tokens() - 1);
    ref.num_prompt_logprobs = std::max(0, last - item.start_pos);
  }
  const int32_t end = item.start_pos + num_query, from = sequence->paths_at_start;
  ref.first_path = from < 0 ? end : std::clamp(from, item.start_pos, end);
  sequence->PlanItem(num_query, item.sample);
  draft->budget[rank] -= num_query;
  draft->plan.ranks[rank].items.push_back(std::move(item));
  draft->refs.ranks[rank].push_back(ref);
}

bool Scheduler::IsPlainDecodes(const Draft& draft) {
  for (const std::vector<ItemRef>& rank : draft.refs.ranks) {
    for (const ItemRef& ref : rank) {
      const int64_t num_output = ref.start_pos + ref.num_query - ref.sequence->num_prompt_tokens();
      if (ref.num_query != 1 || !ref.sample || !IsPlainSampling(ref.sequence->sampling(), num_output)) return false;
    }
  }
  return true;
}

bool Scheduler::TellsPaths(const Draft& draft) {
  return std::any_of(draft.refs.ranks.begin(), draft.refs.ranks.end(), [](const std::vector<ItemRef>& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const ItemRef& ref) { return ref.sequence->paths_at_start >= 0; });
  });
}

StepPlan Scheduler::Seal(Draft draft) {
  StepPlan& plan = draft.plan;
  plan.step = draft.refs.step = next_step_++;
  plan.group_epoch = group_epoch_;
  std::vector<int32_t> rank_rows;
  for (const RankPlan& rank : plan.ranks) rank_rows.push_back(rank.NumRows());
  // Nobody tells a lender what its borrower's gates chose.
  plan.loans = LendRows(rank_rows, TellsPaths(draft) ? 0 : min_loan_rows_);
  for (const RowLoan& loan : plan.loans) totals_.rows_lent += loan.rows;
  for (const int32_t rows : ComputedRows(rank_rows, plan.loans)) plan.padded_rows = std::max(plan.padded_rows, rows);
  plan.exchange_version = IsPlainDecodes(draft) ? kDecodeExchange : kExactExchange;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    plan.ranks[r].freed_slots = std::exchange(ranks_[r].freed_slots, {});
    // Only now, so that nobody in this plan found them; a rank runs plans in order, so the next plan may.
    for (const ItemRef& ref : draft.refs.ranks[r]) PublishComputed(ref.sequence);
  }
  in_flight_.push_back(std::move(draft.refs));
  return std::move(draft.plan);
}

void Scheduler::PublishComputed(Sequence* sequence) {
  if (!policy_.prefix_reuse) return;
  BlockPool& pool = ranks_[sequence->rank].pool;
  const int32_t num_full = std::min(sequence->num_planned(), sequence->num_tokens()) / policy_.block_size;
  while (sequence->num_published < num_full) {
    const int32_t index = sequence->num_published++;
    sequence->published_content = pool.Publish(sequence->block_table[index], sequence->chain(), sequence->tokens(),
                                               index, sequence->published_content);
  }
}

}  // namespace switchyard
