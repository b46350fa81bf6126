// A group of workers for tests of the scheduler: it holds slots and paged caches as real ranks do and is strict about
// every promise of step.h.  Each violation is a gtest failure that names step, rank and slot.
//
// The "model": the cache cell of position p is a hash of the cell of p-1 and the token at p, the cell before the first
// is a hash of the adapter; the next token is a hash of the last cell, the seed, the choice and the index.  So an
// output is right only if every cell before it is, and was computed with the sequence's adapter.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/step.h"

namespace switchyard::testing_batching {

inline constexpr int32_t kVocab = 50;

uint64_t NextCell(uint64_t cell, int32_t token);
// The token that the model chooses after `cell`; respects min_tokens.
int32_t NextToken(uint64_t cell, const batching::SamplingParams& sampling, int32_t index);
// The outputs of a run without faults, neighbours or limits of space: ends with a stop id, after max_tokens, or at
// `max_context` tokens in all.
std::vector<int32_t> ReferenceOutputs(const batching::Request& request, const batching::SamplingParams& sampling,
                                      int32_t max_context);
// The experts that the fake's row with this cell chose: one layer, top-2.
inline constexpr int32_t kPathIds = 2;
std::vector<int16_t> FakePath(uint64_t cell);
// The paths of positions [first, end) of a sequence with this adapter.
std::vector<int16_t> ReferencePaths(const std::vector<int32_t>& tokens, int32_t adapter, int32_t first, int32_t end);
// The fake's logprob of a prompt token.
float FakeLogprob(uint64_t cell_before, int32_t token);

class FakeExecutor {
 public:
  FakeExecutor(int32_t num_ranks, int32_t num_blocks, int32_t block_size, int32_t num_slots);

  // Runs a plan on all ranks.  Items of one rank see only what earlier plans have written.
  batching::StepResult Execute(const batching::StepPlan& plan);

 private:
  struct Slot {
    std::vector<int32_t> tokens;
    int32_t num_prompt_tokens = 0;
    batching::SamplingParams sampling;
    std::vector<batching::BlockId> table;
    int32_t num_computed = 0;
    int32_t adapter = 0;
  };
  struct Rank {
    std::map<batching::SlotId, Slot> slots;
    std::vector<uint64_t> cells;  // [P * block_size]
  };

  void Prepare(const batching::StepItem& item, Rank* rank);
  void CheckCache(const batching::StepItem& item, const Rank& rank) const;
  batching::ItemResult Run(const batching::StepItem& item, Rank* rank, std::set<size_t>* written);

  const int32_t num_blocks_;
  const int32_t block_size_;
  const int32_t num_slots_;
  std::vector<Rank> ranks_;
};

}  // namespace switchyard::testing_batching
