// Plans of a group's greedy runs: they need no results, as how many tokens come is known, and which ones is the slots'
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/batching/step.h"
#include "tests/workers/model/rank_group.h"

namespace switchyard::model {

// Positions that a sequence may have.
inline constexpr int32_t kMaxGroupTokens = 640;

class GreedyPlanner {
 public:
  // Borrows options and prompts.  Prompt i runs on rank i mod R.
  GreedyPlanner(const RankGroupOptions& options, const std::vector<std::vector<int32_t>>& prompts, int32_t num_tokens);

  // The next step; false if there is none.  owners[rank][i]: which prompt the i-th item belongs to.
  bool Next(batching::StepPlan* plan, std::vector<std::vector<int32_t>>* owners);

 private:
  struct Planned {
    int32_t id = 0;  // index of the prompt
    int32_t rank = 0;
    int32_t slot = 0;
    int32_t length = 0;  // of the prompt
    int32_t done = 0;    // positions computed
    std::vector<batching::BlockId> blocks;
  };

  void Admit();
  batching::StepItem Item(Planned* sequence);
  // The head of the plan: the parts that concern the step as a whole.
  void Agree(batching::StepPlan* plan) const;
  // Takes back what the sequences that are done had.
  void Retire();

  const RankGroupOptions& options_;
  const std::vector<std::vector<int32_t>>& prompts_;
  const int32_t num_tokens_;
  size_t next_ = 0;
  std::vector<Planned> running_, finished_;
  std::vector<std::vector<batching::BlockId>> free_;       // [R]
  std::vector<std::vector<batching::SlotId>> free_slots_;  // [R]
};

}  // namespace switchyard::model
