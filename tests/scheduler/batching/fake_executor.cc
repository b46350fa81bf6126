#include "tests/scheduler/batching/fake_executor.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace switchyard::testing_batching {
namespace {

uint64_t Hash(uint64_t a, uint64_t b) {
  uint64_t z = (a * 0x9e3779b97f4a7c15ull) ^ (b + 0x632be59bd9b4e019ull);
  z = (z ^ (z >> 29)) * 0xff51afd7ed558ccdull;
  return z ^ (z >> 32);
}

// Before the first position.
uint64_t FirstCell(int32_t adapter) { return Hash(0x5757, static_cast<uint32_t>(adapter)); }

}  // namespace

uint64_t NextCell(uint64_t cell, int32_t token) { return Hash(cell, static_cast<uint32_t>(token)); }

int32_t NextToken(uint64_t cell, const batching::SamplingParams& sampling, int32_t index) {
  int32_t token = static_cast<int32_t>(Hash(Hash(cell, sampling.seed), sampling.choice * 1000u + index) % kVocab);
  const auto masked = [&](int32_t t) {
    return index < sampling.min_tokens &&
           std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), t) != sampling.stop_ids.end();
  };
  while (masked(token)) token = (token + 1) % kVocab;
  return token;
}

std::vector<int32_t> ReferenceOutputs(const batching::Request& request, const batching::SamplingParams& sampling,
                                      int32_t max_context) {
  uint64_t cell = FirstCell(request.adapter);
  for (const int32_t token : request.prompt) cell = NextCell(cell, token);
  std::vector<int32_t> outputs;
  while (static_cast<int32_t>(outputs.size()) < request.max_tokens &&
         static_cast<int32_t>(request.prompt.size() + outputs.size()) < max_context) {
    const int32_t index = static_cast<int32_t>(outputs.size());
    outputs.push_back(NextToken(cell, sampling, index));
    cell = NextCell(cell, outputs.back());
    const auto& stops = sampling.stop_ids;
    if (index >= sampling.min_tokens && std::find(stops.begin(), stops.end(), outputs.back()) != stops.end()) break;
  }
  return outputs;
}

std::vector<int16_t> FakePath(uint64_t cell) {
  return {static_cast<int16_t>(cell % 101), static_cast<int16_t>(cell / 101 % 103)};
}

std::vector<int16_t> ReferencePaths(const std::vector<int32_t>& tokens, int32_t adapter, int32_t first, int32_t end) {
  std::vector<int16_t> paths;
  uint64_t cell = FirstCell(adapter);
  for (int32_t pos = 0; pos < end; ++pos) {
    cell = NextCell(cell, tokens[pos]);
    if (pos < first) continue;
    for (const int16_t expert : FakePath(cell)) paths.push_back(expert);
  }
  return paths;
}

float FakeLogprob(uint64_t cell_before, int32_t token) {
  return -static_cast<float>(Hash(cell_before, 77u + static_cast<uint32_t>(token)) % 1000) / 100.0f;
}

FakeExecutor::FakeExecutor(int32_t num_ranks, int32_t num_blocks, int32_t block_size, int32_t num_slots)
    : num_blocks_(num_blocks), block_size_(block_size), num_slots_(num_slots), ranks_(num_ranks) {
  for (Rank& rank : ranks_) rank.cells.assign(static_cast<size_t>(num_blocks) * block_size, 0);
}

batching::StepResult FakeExecutor::Execute(const batching::StepPlan& plan) {
  batching::StepResult result;
  result.step = plan.step;
  result.group_epoch = plan.group_epoch;
  EXPECT_EQ(plan.ranks.size(), ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r << " of " << plan.DebugString());
    const batching::RankPlan& todo = plan.ranks[r];
    Rank& rank = ranks_[r];
    for (const batching::SlotId slot : todo.freed_slots) EXPECT_EQ(rank.slots.erase(slot), 1u) << "freed slot " << slot;
    std::set<batching::SlotId> seen;
    for (const batching::StepItem& item : todo.items) {
      EXPECT_TRUE(seen.insert(item.slot).second) << "slot " << item.slot << " twice in a plan";
      Prepare(item, &rank);
    }
    for (const batching::StepItem& item : todo.items) CheckCache(item, rank);
    std::set<size_t> written;
    batching::RankResult& answer = result.ranks.emplace_back();
    for (const batching::StepItem& item : todo.items) answer.items.push_back(Run(item, &rank, &written));
    answer.rows = todo.NumRows();
  }
  return result;
}

void FakeExecutor::Prepare(const batching::StepItem& item, Rank* rank) {
  ASSERT_GE(item.slot, 0);
  ASSERT_LT(item.slot, num_slots_);
  EXPECT_EQ(rank->slots.contains(item.slot), !item.init.has_value()) << "slot " << item.slot << ": init iff empty";
  Slot& slot = rank->slots[item.slot];
  if (item.init) {
    EXPECT_GE(item.init->num_prompt_tokens, 1);
    EXPECT_LE(static_cast<size_t>(item.init->num_prompt_tokens), item.init->tokens.size());
    slot = Slot{.tokens = item.init->tokens,
                .num_prompt_tokens = item.init->num_prompt_tokens,
                .sampling = item.init->sampling,
                .table = {},
                .num_computed = item.start_pos,
                .adapter = item.init->adapter};
    EXPECT_EQ(item.start_pos % block_size_, 0) << "only full blocks are shared";
  }
  EXPECT_EQ(item.start_pos, slot.num_computed) << "slot " << item.slot << " continues where it stopped";
  EXPECT_GE(item.num_query, 1);
  EXPECT_LE(static_cast<size_t>(item.start_pos + item.num_query), slot.tokens.size()) << "token not known to the slot";
  EXPECT_EQ(item.sample, static_cast<size_t>(item.start_pos + item.num_query) == slot.tokens.size());
  for (const batching::BlockId block : item.new_blocks) {
    ASSERT_GE(block, 0);
    ASSERT_LT(block, num_blocks_);
    slot.table.push_back(block);
  }
  const int32_t needed = (item.start_pos + item.num_query + block_size_ - 1) / block_size_;
  EXPECT_EQ(static_cast<int32_t>(slot.table.size()), needed) << "slot " << item.slot << ": blocks too few or many";
}

// Every cell before the item's first query holds what this sequence would have written.
void FakeExecutor::CheckCache(const batching::StepItem& item, const Rank& rank) const {
  const Slot& slot = rank.slots.at(item.slot);
  uint64_t cell = FirstCell(slot.adapter);
  for (int32_t pos = 0; pos < item.start_pos; ++pos) {
    cell = NextCell(cell, slot.tokens[pos]);
    const size_t at = static_cast<size_t>(slot.table[pos / block_size_]) * block_size_ + pos % block_size_;
    ASSERT_EQ(rank.cells[at], cell) << "slot " << item.slot << " position " << pos << ": another content in the cache";
  }
}

batching::ItemResult FakeExecutor::Run(const batching::StepItem& item, Rank* rank, std::set<size_t>* written) {
  batching::ItemResult result;
  Slot& slot = rank->slots.at(item.slot);
  uint64_t cell = FirstCell(slot.adapter);
  for (int32_t pos = 0; pos < item.start_pos; ++pos) cell = NextCell(cell, slot.tokens[pos]);
  for (int32_t pos = item.start_pos; pos < item.start_pos + item.num_query; ++pos) {
    cell = NextCell(cell, slot.tokens[pos]);
    const batching::BlockId block = slot.table[pos / block_size_];
    const size_t at = static_cast<size_t>(block) * block_size_ + pos % block_size_;
    EXPECT_TRUE(written->insert(at).second) << "cell written twice in a step";
    rank->cells[at] = cell;
    if (slot.sampling.expert_paths_from >= 0 && pos >= slot.sampling.expert_paths_from) {
      for (const int16_t expert : FakePath(cell)) result.expert_paths.push_back(expert);
    }
    const bool wanted = slot.sampling.num_prompt_logprobs >= 0 && pos + 1 < slot.num_prompt_tokens;
    if (wanted) {
      const int32_t next = slot.tokens[pos + 1];
      result.prompt_logprobs.push_back({.chosen = {.token = next, .logprob = FakeLogprob(cell, next)}, .top = {}});
    }
  }
  for (int32_t b = item.start_pos / block_size_; b < static_cast<int32_t>(slot.table.size()); ++b) {
    for (const auto& [id, other] : rank->slots) {
      if (id == item.slot) continue;
      EXPECT_EQ(std::count(other.table.begin(), other.table.end(), slot.table[b]), 0)
          << "block " << slot.table[b] << " written by slot " << item.slot << " is in the table of slot " << id;
    }
  }
  slot.num_computed = item.start_pos + item.num_query;
  if (item.sample) {
    const int32_t index = static_cast<int32_t>(slot.tokens.size()) - slot.num_prompt_tokens;
    result.tokens.push_back(NextToken(cell, slot.sampling, index));
    if (slot.sampling.num_logprobs >= 0) {
      result.logprobs.push_back(
          {.chosen = {.token = result.tokens[0], .logprob = FakeLogprob(cell, result.tokens[0])}, .top = {}});
    }
    slot.tokens.push_back(result.tokens[0]);
  }
  return result;
}

}  // namespace switchyard::testing_batching
