// Which experts rows chose, reported where a request asks for it: as transformers' routers choose, however the rows are
// computed.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/runner_fixture.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunnerPathsTest : public ModelRunnerTest {};

// In whatever pieces the prompt is computed, beside whatever else.
TEST_F(RunnerPathsTest, ReportsWhichExpertsTheRowsOfThoseWhoAskChose) {
  const std::vector<int32_t>& tokens = fixture_.steady.tokens;  // 40
  const std::vector<int16_t> expected(fixture_.steady_experts.begin(), fixture_.steady_experts.end());
  const auto row = static_cast<int64_t>(expected.size() / tokens.size());
  batching::StepItem whole = Prefill(0, tokens, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  whole.init->sampling.expert_paths_from = 0;
  auto result = Execute(Items({Prefill(1, {1, 2, 3}, {10}), whole}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->items[0].expert_paths, IsEmpty());
  EXPECT_EQ(result->items[1].expert_paths, expected);
  // From the middle of the second chunk on; the last token alone, as a decode is.
  batching::StepItem first = Prefill(2, tokens, {11, 12, 13, 14, 15, 16, 17, 18, 19, 20});
  first.init->sampling.expert_paths_from = 20;
  first.num_query = 15;
  first.sample = false;
  batching::StepItem second = Decode(2, 15), third = Decode(2, 39);
  second.num_query = 24;
  second.sample = false;
  std::vector<int16_t> found;
  for (const batching::StepItem& item : {first, second, third}) {
    result = Execute(Items({item}));
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<int16_t>& paths = result->items[0].expert_paths;
    found.insert(found.end(), paths.begin(), paths.end());
  }
  EXPECT_EQ(found, std::vector<int16_t>(expected.begin() + 20 * row, expected.end()));
}

TEST(RouterGoldensTest, EveryFamilysRoutersChooseAsTransformersDo) {
  if (DeviceIsEmulated()) GTEST_SKIP() << "many models; one of them is emulated above";
  for (const std::string& name : FixtureNames()) {
    SCOPED_TRACE(name);
    if (absl::StartsWith(name, "gpt") && !TestDevice().is_cpu()) continue;  // has no kernels on devices yet
    const Fixture fixture = LoadFixture(name);
    RankGroup group(fixture.dir, {.dtype = DType::kF32, .block_size = 64, .batch = 1});
    batching::StepItem item;
    item.num_query = static_cast<int32_t>(fixture.steady.tokens.size());
    item.init =
        batching::SlotInit{.tokens = fixture.steady.tokens, .num_prompt_tokens = item.num_query, .sampling = {}};
    item.init->sampling.expert_paths_from = 0;
    item.new_blocks = {0};
    batching::RankPlan plan;
    plan.items = {item};
    const auto result = group.runner(0).Execute(batching::StepPlan(), plan, absl::Now() + absl::Seconds(10));
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<int16_t>& paths = result->items[0].expert_paths;
    EXPECT_EQ(std::vector<int32_t>(paths.begin(), paths.end()), fixture.steady_experts);
  }
}

// A borrower has chosen for them, and nobody brings that back.
TEST_F(RunnerPathsTest, RowsWhoseExpertsAreAskedForAreNotGiven) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "devices give away no rows";
  batching::StepItem item = Prefill(0, {1, 2, 3}, {0});
  item.init->sampling.expert_paths_from = 0;
  batching::StepPlan step;
  step.transfers = {{.from = 0, .to = 1, .rows = 1}};
  const auto result = group_.runner(0).Execute(step, Items({item}), absl::Now() + absl::Seconds(10));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("rows are given away in a step that asks for their experts"));
}

}  // namespace
}  // namespace switchyard::model
