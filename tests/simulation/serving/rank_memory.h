// Slots and paged KV cache of one simulated rank.  Strict about every promise of scheduler/batching/step.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/batching/step.h"

namespace switchyard::simulation {

class RankMemory {
 public:
  RankMemory(int32_t num_slots, int32_t num_blocks, int32_t block_size)
      : num_slots_(num_slots), block_size_(block_size), cells_(static_cast<size_t>(num_blocks) * block_size) {}

  // Runs one step's part, with the masks that followed it.  Returns what is wrong with them; empty: nothing is.
  std::string Run(const batching::RankPlan& plan, const batching::RankMasks& masks, batching::RankResult* result);
  // Whether the plan computes the first token of a prompt that crashes workers.
  bool IsPoisoned(const batching::RankPlan& plan) const;

 private:
  struct Slot {
    std::vector<int32_t> tokens;
    size_t num_prompt_tokens = 0;
    batching::SamplingParams sampling;
    std::vector<batching::BlockId> table;
    int32_t num_computed = 0;
  };
  std::string Prepare(const batching::StepItem& item);
  std::string Compute(const batching::StepItem& item, const grammar::TokenMask& mask, batching::ItemResult* result);
  uint64_t& CellOf(const Slot& slot, int32_t position) {
    return cells_[static_cast<size_t>(slot.table[position / block_size_]) * block_size_ + position % block_size_];
  }

  const int32_t num_slots_, block_size_;
  std::map<batching::SlotId, Slot> slots_;
  std::vector<uint64_t> cells_;  // [blocks * block_size]
};

}  // namespace switchyard::simulation
