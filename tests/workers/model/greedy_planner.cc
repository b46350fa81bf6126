#include "tests/workers/model/greedy_planner.h"

#include <algorithm>

#include "scheduler/batching/row_transfers.h"

namespace switchyard::model {

GreedyPlanner::GreedyPlanner(const RankGroupOptions& options, const std::vector<std::vector<int32_t>>& prompts,
                             int32_t num_tokens)
    : options_(options), prompts_(prompts), num_tokens_(num_tokens), free_(options.world), free_slots_(options.world) {
  for (int r = 0; r < options.world; ++r) {
    // Falling order, so that block tables are no ranges.
    for (batching::BlockId b = kMaxGroupTokens / options.block_size * options.batch - 1; b >= 0; --b)
      free_[r].push_back(b);
    for (batching::SlotId s = options.batch - 1; s >= 0; --s) free_slots_[r].push_back(s);
  }
}

bool GreedyPlanner::Next(batching::StepPlan* plan, std::vector<std::vector<int32_t>>* owners) {
  plan->ranks.assign(options_.world, batching::RankPlan());
  owners->assign(options_.world, {});
  plan->micro_batches = options_.micro_batches;
  for (Planned& sequence : finished_) plan->ranks[sequence.rank].freed_slots.push_back(sequence.slot);
  finished_.clear();
  while (static_cast<int32_t>(running_.size()) < options_.batch && next_ < prompts_.size()) Admit();
  if (running_.empty()) return false;
  for (Planned& sequence : running_) {
    plan->ranks[sequence.rank].items.push_back(Item(&sequence));
    (*owners)[sequence.rank].push_back(sequence.id);
  }
  Agree(plan);
  Retire();
  ++plan->step;
  return true;
}

void GreedyPlanner::Agree(batching::StepPlan* plan) const {
  std::vector<int32_t> rank_rows;
  bool decodes = true;
  for (const batching::RankPlan& rank : plan->ranks) {
    rank_rows.push_back(rank.NumRows());
    for (const batching::StepItem& item : rank.items) decodes &= item.sample && item.num_query == 1;
  }
  plan->exchange_version = decodes ? batching::kDecodeExchange : batching::kExactExchange;
  plan->transfers = batching::GiveRows(rank_rows, options_.min_rebalance_rows);
  plan->rank_rows = batching::ComputedRows(rank_rows, plan->transfers);
}

void GreedyPlanner::Retire() {
  for (size_t i = 0; i < running_.size();) {
    if (running_[i].done < running_[i].length + num_tokens_ - 1) {
      ++i;
      continue;
    }
    std::vector<batching::BlockId>& free = free_[running_[i].rank];
    free.insert(free.end(), running_[i].blocks.begin(), running_[i].blocks.end());
    free_slots_[running_[i].rank].push_back(running_[i].slot);
    finished_.push_back(running_[i]);
    running_.erase(running_.begin() + static_cast<int64_t>(i));
  }
}

void GreedyPlanner::Admit() {
  const auto rank = static_cast<int32_t>(next_ % options_.world);
  Planned sequence{.id = static_cast<int32_t>(next_),
                   .rank = rank,
                   .slot = free_slots_[rank].back(),
                   .length = static_cast<int32_t>(prompts_[next_].size()),
                   .done = 0,
                   .blocks = {}};
  free_slots_[rank].pop_back();
  running_.push_back(sequence);
  ++next_;
}

batching::StepItem GreedyPlanner::Item(Planned* sequence) {
  batching::StepItem item;
  item.slot = sequence->slot;
  item.start_pos = sequence->done;
  item.num_query = sequence->done < sequence->length ? std::min(options_.chunk, sequence->length - sequence->done) : 1;
  sequence->done += item.num_query;
  item.sample = sequence->done >= sequence->length;
  if (item.start_pos == 0) {
    item.init =
        batching::SlotInit{.tokens = prompts_[sequence->id], .num_prompt_tokens = sequence->length, .sampling = {}};
    item.init->sampling.temperature = 0;
    if (const auto id = static_cast<size_t>(sequence->id); id < options_.adapter_of.size())
      item.init->adapter = options_.adapter_of[id];
  }
  std::vector<batching::BlockId>& free = free_[sequence->rank];
  while (static_cast<int32_t>(sequence->blocks.size()) * options_.block_size < sequence->done) {
    sequence->blocks.push_back(free.back());
    item.new_blocks.push_back(free.back());
    free.pop_back();
  }
  return item;
}

}  // namespace switchyard::model
