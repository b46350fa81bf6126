// A runner of a fixture's model, and the plans that tests give it.
#pragma once

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "workers/model/runner/model_runner.h"

namespace switchyard::model {

class ModelRunnerTest : public ::testing::Test {
 protected:
  ModelRunnerTest()
      : fixture_(LoadFixture("qwen3-qknorm")),
        group_(fixture_.dir, {.dtype = DType::kF32, .block_size = 4, .batch = 4}) {}

  absl::StatusOr<batching::RankResult> Execute(batching::RankPlan plan) {
    batching::StepPlan step;
    step.step = ++step_;
    return group_.runner(0).Execute(step, plan, absl::Now() + absl::Seconds(10));
  }
  static batching::RankPlan Items(std::vector<batching::StepItem> items) {
    batching::RankPlan plan;
    plan.items = std::move(items);
    return plan;
  }
  static batching::RankPlan Free(batching::SlotId slot) {
    batching::RankPlan plan;
    plan.freed_slots = {slot};
    return plan;
  }
  // An item that prefills all of `tokens` and samples greedily.
  static batching::StepItem Prefill(batching::SlotId slot, const std::vector<int32_t>& tokens,
                                    std::vector<batching::BlockId> blocks) {
    batching::StepItem item;
    item.slot = slot;
    item.num_query = static_cast<int32_t>(tokens.size());
    item.init = batching::SlotInit{.tokens = tokens, .num_prompt_tokens = item.num_query, .sampling = {}};
    item.init->sampling.temperature = 0;
    item.new_blocks = std::move(blocks);
    item.sample = true;
    return item;
  }
  static batching::StepItem Decode(batching::SlotId slot, int32_t start_pos,
                                   std::vector<batching::BlockId> blocks = {}) {
    batching::StepItem item;
    item.slot = slot;
    item.start_pos = start_pos;
    item.num_query = 1;
    item.new_blocks = std::move(blocks);
    item.sample = true;
    return item;
  }
  Fixture fixture_;
  RankGroup group_;
  int64_t step_ = 0;
};

}  // namespace switchyard::model
