// Whole steps of ranks that hold a part of their experts where they compute: the same tokens as with all of them, in
// chunks, many at a time and overlapped.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/popularity.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"

namespace switchyard::model {
namespace {

TEST(BudgetRunnerTest, TheTokensOfResidentExperts) {
  const int32_t tokens = DeviceIsEmulated() ? 4 : 16;
  for (const char* name : {"qwen3-qknorm", "qwen2-shared", "gptoss-mxfp4"}) {
    const Fixture fixture = LoadFixture(name);
    std::vector<std::vector<int32_t>> prompts;
    for (size_t i = 0; i < 4; ++i) prompts.push_back(fixture.greedy[i].prompt);
    const RankGroupOptions resident = {.dtype = DType::kBf16, .batch = 4};
    const std::vector<std::vector<int32_t>> expected = RankGroup(fixture.dir, resident).Greedy(prompts, tokens);
    for (const auto& [world, micro_batches] : {std::pair{1, 1}, {2, 1}, {1, 3}, {2, 2}}) {
      if (!HasDevices(world)) continue;
      RankGroupOptions options = resident;
      options.world = world;
      options.expert_slots = 3;
      options.chunk = world == 1 ? 512 : 9;
      options.in_flight = world == 1 ? ModelRunner::kMaxStarted : 1;
      options.micro_batches = micro_batches;
      RankGroup group(fixture.dir, options);
      EXPECT_EQ(group.Greedy(prompts, tokens), expected) << name << " on " << world;
      for (int rank = 0; rank < world; ++rank) {
        const moe::ExpertStoreCounters counters = group.offload(rank).store().counters();
        EXPECT_GT(counters.misses, 0) << name << " on " << world;
        EXPECT_EQ(counters.failed, 0);
        // More than one a layer and step: where rows want more experts than there are slots.
        EXPECT_GT(group.offload(rank).waves(), counters.misses / 3);
        const DeviceSteps* const steps = group.runner(rank).device_steps();
        if (steps != nullptr) {
          EXPECT_EQ(steps->counters().captured, 0);
        }
      }
    }
  }
}

// Knows nothing but one expert that the first layer of a step will need, another one each time.
class FirstLayerLoadPredictor final : public moe::LayerLoadPredictor {
 public:
  explicit FirstLayerLoadPredictor(int64_t num_experts) : popularity_(static_cast<size_t>(num_experts)) {}
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const moe::ForecastPass&) override {
    std::fill(popularity_.begin(), popularity_.end(), 0);
    popularity_[next_++ % popularity_.size()] = 9 * popularity::kRow;
    return absl::MakeConstSpan(&estimate_, 1);
  }
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const moe::MoeContext&,
                                                                    const moe::LayerContext&) override {
    return absl::Span<const placement::LayerEstimate>();
  }

 private:
  size_t next_ = 0;
  popularity::Popularity popularity_;
  const placement::LayerEstimate estimate_ = {.layer = 0, .popularity = popularity_};
};

TEST(BudgetRunnerTest, WhatAStepIsExpectedToBeginWithIsPrefetched) {
  const Fixture fixture = LoadFixture("qwen3-qknorm");
  const std::vector<std::vector<int32_t>> prompts = {fixture.greedy[0].prompt};
  RankGroupOptions options = {.dtype = DType::kBf16, .expert_slots = 5, .expert_prefetch = true};
  const auto prefetched = [&](std::vector<std::vector<int32_t>>* tokens) {
    RankGroup group(fixture.dir, options);
    *tokens = group.Greedy(prompts, 8);
    return group.offload(0).store().counters().prefetched;
  };
  std::vector<std::vector<int32_t>> expected, tokens;
  const int64_t by_the_past = prefetched(&expected);
  EXPECT_GE(by_the_past, 5) << "what the slots begin with";
  options.load_predictor = [](const Model& model) {
    return std::make_unique<FirstLayerLoadPredictor>(model.config().num_experts);
  };
  EXPECT_NE(prefetched(&tokens), by_the_past);
  EXPECT_EQ(tokens, expected);
}

// A worker on a device takes all scratch before the cache takes what is left.
TEST(BudgetRunnerTest, StepsFindTheirMemoryThere) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts = {std::vector<int32_t>(200, 7)};
  for (size_t i = 0; i < 3; ++i) prompts.push_back(fixture.greedy[i].prompt);
  for (const int world : {1, 2}) {
    if (!HasDevices(world)) continue;
    RankGroup group(fixture.dir,
                    {.dtype = DType::kBf16, .world = world, .batch = 4, .warm_up = true, .expert_slots = 3});
    const int64_t taken = MemoryInUse(DeviceKind::kCuda);
    group.Greedy(prompts, 3);
    EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), taken) << world << " ranks";
  }
}

}  // namespace
}  // namespace switchyard::model
