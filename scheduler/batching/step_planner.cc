#include "scheduler/batching/step_planner.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/batching/row_transfers.h"

namespace switchyard::batching {
namespace {

bool IsPlainDecodes(const PlannedStep& step) {
  for (const std::vector<PlannedItem>& rank : step.items) {
    for (const PlannedItem& item : rank) {
      const int64_t num_output = item.start_pos + item.num_query - item.sequence->num_prompt_tokens();
      if (item.num_query != 1 || !item.sample || !IsPlainSampling(item.sequence->sampling(), num_output)) return false;
    }
  }
  return true;
}

bool ReportsPaths(const PlannedStep& step) {
  return std::any_of(step.items.begin(), step.items.end(), [](const std::vector<PlannedItem>& rank) {
    return std::any_of(rank.begin(), rank.end(),
                       [](const PlannedItem& item) { return item.sequence->paths_at_start >= 0; });
  });
}

}  // namespace

StepPlanner::StepPlanner(const BatchingPolicy& policy, RequestTable* requests, WaitingQueue* waiting,
                         RunningSequences* running)
    : policy_(policy), requests_(requests), waiting_(waiting), running_(running) {}

std::optional<PlannedStep> StepPlanner::Plan(absl::Time now) {
  const size_t num_ranks = running_->ranks().size();
  if (policy_.preempt_every_step) PreemptForVerification();
  Draft draft;
  draft.now = now;
  draft.step.plan.ranks.resize(num_ranks);
  draft.step.items.resize(num_ranks);
  draft.budget.assign(num_ranks, policy_.max_batched_tokens);
  for (int32_t rank = 0; rank < static_cast<int32_t>(num_ranks); ++rank) {
    PlanRunning(rank, /*decodes=*/true, &draft);
    PlanRunning(rank, /*decodes=*/false, &draft);
  }
  PlanWaiting(&draft);
  const bool empty = std::all_of(draft.step.items.begin(), draft.step.items.end(),
                                 [](const std::vector<PlannedItem>& items) { return items.empty(); });
  if (empty) return std::nullopt;
  return Seal(std::move(draft));
}

// A sequence that has an output since its start may be preempted: so each start makes progress, and all end.
void StepPlanner::PreemptForVerification() {
  Sequence* victim = nullptr;
  for (const RankState& rank : running_->ranks()) {
    for (Sequence* sequence : rank.running) {
      if (sequence->draining || sequence->num_outputs() == sequence->outputs_at_start) continue;
      const auto order = [](const Sequence& s) { return std::tuple(-s.Usage().preemptions, s.arrival()); };
      if (victim == nullptr || order(*sequence) > order(*victim)) victim = sequence;
    }
  }
  if (victim != nullptr) running_->Preempt(victim);
}

void StepPlanner::PlanRunning(int32_t rank_idx, bool decodes, Draft* draft) {
  RankState& rank = running_->ranks()[rank_idx];
  const std::vector<Sequence*> running = rank.running;  // a copy: making room takes sequences out
  for (Sequence* sequence : running) {
    const int32_t budget = draft->budget[rank_idx];
    if (budget == 0) return;
    if (sequence->state() != SequenceState::kRunning || sequence->draining) continue;
    if ((sequence->num_to_compute() == 1) != decodes || !sequence->WantsMore(running_->max_context())) continue;
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

void StepPlanner::PlanWaiting(Draft* draft) {
  if (waiting_->empty()) return;
  const absl::Span<const RankState> ranks = running_->ranks();
  const auto runs_suspect = [](const RankState& rank) {
    return std::any_of(rank.running.begin(), rank.running.end(), [](const Sequence* s) { return s->is_suspect(); });
  };
  if (running_->suspect_items > 0 || std::any_of(ranks.begin(), ranks.end(), runs_suspect)) return;
  // Blocks that running sequences still need for the tokens they already have: a newcomer must not take those.
  std::vector<int32_t> outstanding(ranks.size(), 0);
  const auto owed = [this](const Sequence& s) {
    return std::max(0, BlocksFor(s.num_tokens()) - static_cast<int32_t>(s.block_table.size()));
  };
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const Sequence* sequence : ranks[r].running) {
      if (!sequence->draining) outstanding[r] += owed(*sequence);
    }
  }
  if (Sequence* const suspect = waiting_->FirstSuspect()) {
    if (LacksMask(*suspect)) return;
    const Placement placement = Place(*suspect, *draft, outstanding);
    if (placement.rank >= 0) StartSequence(suspect, placement, draft);
    return;
  }
  uint64_t last = 0;
  while (Sequence* const sequence = waiting_->After(last)) {
    last = sequence->arrival();
    if (LacksMask(*sequence) || HeldForLeader(*sequence)) continue;
    const Placement placement = Place(*sequence, *draft, outstanding);
    if (placement.rank < 0) return;  // nobody overtakes
    StartSequence(sequence, placement, draft);
    outstanding[placement.rank] += owed(*sequence);
  }
}

// Its first mask is being made: in a plan it would keep the others waiting.
bool StepPlanner::LacksMask(const Sequence& sequence) { return sequence.constrained() && sequence.mask() == nullptr; }

// While choice 0 computes the prompt, the others wait to share its blocks instead of computing their own.
bool StepPlanner::HeldForLeader(const Sequence& sequence) const {
  if (sequence.choice() == 0 || !running_->MayReuse(sequence)) return false;
  const Sequence* leader = requests_->Leader(sequence);
  if (leader == nullptr || leader->state() != SequenceState::kRunning) return false;
  return leader->num_published < (leader->num_prompt_tokens() - 1) / policy_.block_size;
}

StepPlanner::Placement StepPlanner::Place(const Sequence& sequence, const Draft& draft,
                                          absl::Span<const int32_t> outstanding) const {
  const absl::Span<const RankState> ranks = running_->ranks();
  const int32_t num_tokens = sequence.num_tokens();
  const int32_t max_shared = running_->MayReuse(sequence) ? sequence.MostCached() / policy_.block_size : 0;
  std::vector<Placement> places;
  size_t fewest = std::numeric_limits<size_t>::max();
  for (int32_t r = 0; r < static_cast<int32_t>(ranks.size()); ++r) {
    const RankState& rank = ranks[r];
    if (rank.free_slots.empty() || draft.budget[r] == 0) continue;
    PrefixMatch match = rank.pool.Lookup(sequence.chain(), sequence.tokens(), max_shared);
    const int32_t num_new = BlocksFor(num_tokens) - static_cast<int32_t>(match.blocks.size());
    // One block of growth for each that runs: else the newcomer would be preempted in the next steps.
    const int32_t headroom = static_cast<int32_t>(rank.running.size());
    if (num_new + headroom > rank.pool.num_free() - match.num_unreferenced - outstanding[r]) continue;
    fewest = std::min(fewest, rank.running.size());
    places.push_back({r, std::move(match)});
  }
  const auto order = [this, ranks, fewest](const Placement& place) {
    const RankState& rank = ranks[place.rank];
    const bool attracts = rank.running.size() - fewest <= static_cast<size_t>(policy_.max_prefix_imbalance);
    return std::tuple(attracts ? -static_cast<int64_t>(place.match.blocks.size()) : 0, rank.running.size(),
                      rank.pool.num_used(), place.rank);
  };
  const auto best = std::min_element(places.begin(), places.end(),
                                     [&order](const Placement& a, const Placement& b) { return order(a) < order(b); });
  return best == places.end() ? Placement() : std::move(*best);
}

void StepPlanner::StartSequence(Sequence* sequence, const Placement& placement, Draft* draft) {
  running_->Start(sequence, placement.rank, placement.match, draft->now);
  const int32_t num_query = ChunkOf(*sequence, draft->budget[placement.rank]);
  const int32_t num_new =
      BlocksFor(sequence->num_planned() + num_query) - static_cast<int32_t>(sequence->block_table.size());
  SY_CHECK(running_->ranks()[placement.rank].pool.Allocate(num_new, &sequence->block_table));
  AddItem(sequence, num_query, draft);
}

// Preempts the sequences that arrived last until `num_blocks` are free.  False: they will be free later, when plans in
// flight have come back, or `sequence` itself was the last.
bool StepPlanner::MakeRoom(const Sequence& sequence, int32_t num_blocks) {
  RankState& rank = running_->ranks()[sequence.rank];
  while (rank.pool.num_free() < num_blocks) {
    if (rank.num_leaving > 0) return false;
    // Alone it always fits: max_context_ tokens need no more than the whole pool.
    SY_CHECK_GT(rank.running.size(), 1u);
    Sequence* victim = rank.running.back();
    running_->Preempt(victim);
    if (victim == &sequence) return false;
  }
  return true;
}

int32_t StepPlanner::ChunkOf(const Sequence& sequence, int32_t budget) const {
  const int32_t chunk = policy_.prefill_chunk > 0 ? policy_.prefill_chunk : std::numeric_limits<int32_t>::max();
  return std::min({sequence.num_to_compute(), budget, chunk});
}

int32_t StepPlanner::BlocksFor(int32_t num_positions) const {
  return (num_positions + policy_.block_size - 1) / policy_.block_size;
}

void StepPlanner::AddItem(Sequence* sequence, int32_t num_query, Draft* draft) {
  const int32_t rank = sequence->rank;
  StepItem item;
  item.slot = sequence->slot;
  item.start_pos = sequence->num_planned();
  item.num_query = num_query;
  item.sample = num_query == sequence->num_to_compute();
  if (sequence->sent_blocks == 0) item.init = sequence->MakeSlotInit();
  item.new_blocks.assign(sequence->block_table.begin() + sequence->sent_blocks, sequence->block_table.end());
  sequence->sent_blocks = static_cast<int32_t>(sequence->block_table.size());
  PlannedItem planned{.sequence = sequence, .start_pos = item.start_pos, .num_query = num_query, .sample = item.sample};
  if (sequence->sampling().num_prompt_logprobs >= 0 && sequence->NeedsPromptLogprobs()) {
    const int32_t last = std::min(item.start_pos + num_query, sequence->num_prompt_tokens() - 1);
    planned.num_prompt_logprobs = std::max(0, last - item.start_pos);
  }
  const int32_t end = item.start_pos + num_query, from = sequence->paths_at_start;
  planned.first_path = from < 0 ? end : std::clamp(from, item.start_pos, end);
  planned.suspect = sequence->is_suspect();
  running_->suspect_items += planned.suspect ? 1 : 0;
  item.masked = planned.masked = item.sample && sequence->constrained();
  planned.output = sequence->num_outputs() + sequence->num_pending();
  sequence->PlanItem(num_query, item.sample);
  draft->budget[rank] -= num_query;
  draft->step.plan.ranks[rank].items.push_back(std::move(item));
  draft->step.items[rank].push_back(planned);
}

// A giver does not learn what its borrower's gates chose: a step that reports expert paths transfers no rows.
int32_t StepPlanner::MinRebalanceRows(const Draft& draft) const {
  if (!running_->group().may_give || ReportsPaths(draft.step)) return 0;
  return policy_.min_rebalance_rows >= 0 ? policy_.min_rebalance_rows : running_->group().min_rebalance_rows;
}

PlannedStep StepPlanner::Seal(Draft draft) {
  StepPlan& plan = draft.step.plan;
  plan.step = next_step_++;
  plan.group_epoch = running_->group().epoch;
  std::vector<int32_t> rank_rows;
  for (const RankPlan& rank : plan.ranks) rank_rows.push_back(rank.NumRows());
  plan.transfers = GiveRows(rank_rows, MinRebalanceRows(draft));
  for (const RowTransfer& transfer : plan.transfers) rows_given_ += transfer.rows;
  plan.rank_rows = ComputedRows(rank_rows, plan.transfers);
  plan.exchange_version = IsPlainDecodes(draft.step) ? kDecodeExchange : kExactExchange;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    plan.ranks[r].freed_slots = std::exchange(running_->ranks()[r].freed_slots, {});
    // Only now, so that no sequence of this plan found them; a rank runs plans in order, so the next plan may.
    for (const PlannedItem& planned : draft.step.items[r]) running_->PublishComputed(planned.sequence);
  }
  return std::move(draft.step);
}

}  // namespace switchyard::batching
