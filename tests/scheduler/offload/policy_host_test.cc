// Policies and experts that a placement took away: their slots go first, and nothing of them is fetched; and
// of those that a plan wants in memory.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "tests/scheduler/offload/plan_text.h"

namespace switchyard::offload {
namespace {

constexpr OffloadShape kShape = {.num_layers = 2, .num_experts = 4, .num_slots = 3};

class PolicyHostTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<CachePolicy> Make() const {
    const std::vector<int64_t> popularity(kShape.num_keys(), 1);
    if (GetParam() == "expected_use") {
      return std::make_unique<ExpectedUsePolicy>(kShape, CopyCost{.copy_ticks = 8, .chunks_per_copy = 4},
                                                 ExpectedUsePolicy::Options{}, popularity);
    }
    return std::make_unique<LruPolicy>(kShape, false, popularity);
  }
  static LayerPlan Run(CachePolicy* policy, int layer, const std::vector<int32_t>& rows,
                       absl::Span<const LayerForecast> forecasts = {}) {
    return policy->OnGate({.layer = layer, .rows = rows, .compute_ticks = 100}, forecasts);
  }
  // The slot that the plan uses this expert in, and that it copies it to; -1 = it does not.
  static int32_t SlotOf(const LayerPlan& plan, PlanStep::Kind kind, ExpertKey key) {
    for (const PlanStep& step : plan.steps) {
      if (step.kind == kind && step.key == key) return step.slot;
    }
    return -1;
  }
};

INSTANTIATE_TEST_SUITE_P(Policies, PolicyHostTest, testing::Values("expected_use", "lru"),
                         [](const auto& i) { return i.param; });

// Expert 0 of layer 1 is the one that was used last, most, and would be next.
TEST_P(PolicyHostTest, WhatIsGoneMakesRoomFirst) {
  for (const bool gone : {false, true}) {
    const auto policy = Make();
    int32_t slot = -1;
    for (int pass = 0; pass < 6; ++pass) {
      Run(policy.get(), 0, {1, 1, 0, 0});
      slot = SlotOf(Run(policy.get(), 1, {9, 0, 0, 0}), PlanStep::kUse, 4);
    }
    if (gone) policy->Host(4, false);
    const LayerPlan plan = Run(policy.get(), 0, {0, 1, 1, 0});
    EXPECT_EQ(SlotOf(plan, PlanStep::kCopy, 2) == slot, gone) << TextOf(plan);
  }
}

TEST_P(PolicyHostTest, WhatComesBackIsLikeTheOthers) {
  const auto policy = Make();
  for (int pass = 0; pass < 6; ++pass) {
    Run(policy.get(), 0, {1, 1, 0, 0});
    Run(policy.get(), 1, {9, 0, 0, 0});
  }
  policy->Host(4, false);
  policy->Host(4, true);
  const LayerPlan plan = Run(policy.get(), 0, {0, 1, 1, 0});
  EXPECT_EQ(SlotOf(plan, PlanStep::kCopy, 4), -1);
  EXPECT_EQ(SlotOf(Run(policy.get(), 1, {9, 0, 0, 0}), PlanStep::kCopy, 4), -1) << "it had kept its slot";
}

// Expert 3 of layer 1, whose rows others had so far, is fetched before it is needed for the first time.
TEST(PolicyPreferTest, ExpectedUseTakesWhatItDoesNotKnowForLikely) {
  // A slot more than what is needed in each pass.
  const OffloadShape shape = {.num_layers = 2, .num_experts = 4, .num_slots = 5};
  for (const bool preferred : {false, true}) {
    const std::vector<int64_t> popularity = {1, 1, 1, 1, 1, 1, 1, 0};
    ExpectedUsePolicy policy(shape, {.copy_ticks = 8, .chunks_per_copy = 4}, {}, popularity);
    policy.Host(7, false);
    const std::vector<int32_t> first = {1, 0, 0, 0}, second = {1, 1, 1, 0};
    for (int pass = 0; pass < 100; ++pass) {
      policy.OnGate({.layer = 0, .rows = first, .compute_ticks = 100}, {});
      policy.OnGate({.layer = 1, .rows = second, .compute_ticks = 100}, {});
    }
    policy.Host(7, true);
    if (preferred) policy.Prefer(7, true);
    bool fetched = false;
    for (const PlanStep& step : policy.OnGate({.layer = 0, .rows = first, .compute_ticks = 100}, {}).steps) {
      fetched |= step.kind == PlanStep::kPrefetch && step.key == 7;
    }
    EXPECT_EQ(fetched, preferred);
  }
}

TEST(ExpectedUsePolicyHostTest, FetchesNothingThatNoRowsComeFor) {
  const std::vector<int64_t> popularity(kShape.num_keys(), 1);
  const std::vector<int32_t> likely = {0, kChance, kChance, 0};
  const LayerForecast forecast = {.ahead = 1, .chance = likely};
  for (const bool gone : {false, true}) {
    ExpectedUsePolicy policy(kShape, {.copy_ticks = 8, .chunks_per_copy = 4}, {}, popularity);
    const std::vector<int32_t> need = {1, 0, 0, 0}, all = {1, 1, 1, 0}, none = {0, 0, 0, 0};
    // Slots hold layer 0's, so that layer 1's have to come.
    for (int pass = 0; pass < 3; ++pass) {
      policy.OnGate({.layer = 0, .rows = all, .compute_ticks = 100}, {});
      policy.OnGate({.layer = 1, .rows = none, .compute_ticks = 100}, {});
    }
    if (gone) {
      policy.Host(5, false);
      policy.Host(6, false);
    }
    const LayerPlan plan = policy.OnGate({.layer = 0, .rows = need, .compute_ticks = 100}, {&forecast, 1});
    bool fetched = false;
    for (const PlanStep& step : plan.steps) fetched |= step.kind == PlanStep::kPrefetch && step.key >= 4;
    EXPECT_EQ(fetched, !gone) << TextOf(plan);
  }
}

}  // namespace
}  // namespace switchyard::offload
