// Plans that do not fit are refused before anything has changed or is sent: no plan may abort a worker.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/runner_fixture.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

class RunnerPlansTest : public ModelRunnerTest {
 protected:
  void ExpectRefused(const batching::RankPlan& plan, const std::string& message,
                     absl::StatusCode code = absl::StatusCode::kInternal) {
    const auto result = Execute(plan);
    EXPECT_EQ(result.status().code(), code) << message;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message));
  }
};

TEST_F(RunnerPlansTest, PlansThatDoNotFitAreRefusedAndChangeNothing) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ExpectRefused(Items({Decode(0, 0, {0})}), "slot 0: is empty and the item has no init");
  ExpectRefused(Items({Prefill(4, tokens, {0})}), "slot 4: outside [0, 4)");
  ExpectRefused(Items({Prefill(-1, tokens, {0})}), "slot -1: outside [0, 4)");
  ExpectRefused(Free(9), "slot 9: freed, but outside [0, 4)");
  ExpectRefused(Items({Prefill(0, tokens, {0}), Prefill(0, tokens, {1})}), "slot 0: two items in one step");
  ExpectRefused(Items({Prefill(0, {1, 999}, {0})}), "slot 0: token 999 is outside [0, 256)");
  ExpectRefused(Items({Prefill(0, {}, {0})}), "slot 0: 0 tokens, expected [1, 640]");
  ExpectRefused(Items({Prefill(0, tokens, {})}), "slot 0: 0 blocks of 4 for 3 positions");
  ExpectRefused(Items({Prefill(0, tokens, {1 << 20})}), "slot 0: block 1048576 is outside [0, ");
  ExpectRefused(Items({Prefill(0, tokens, std::vector<int32_t>(161, 0))}), "slot 0: 161 blocks of 4, context 640");
  batching::StepItem bad = Prefill(0, tokens, {0});
  bad.num_query = 4;
  ExpectRefused(Items({bad}), "slot 0: queries [0,4) of 3 tokens");
  bad.num_query = 2;
  ExpectRefused(Items({bad}), "slot 0: samples behind position 2 of 3 tokens");
  bad.num_query = 0;
  ExpectRefused(Items({bad}), "slot 0: queries [0,0) of 3 tokens");
  bad = Prefill(0, tokens, {0});
  bad.init->num_prompt_tokens = 4;
  ExpectRefused(Items({bad}), "slot 0: num_prompt_tokens 4 of 3 tokens");
  ASSERT_TRUE(Execute(Items({Prefill(0, tokens, {0})})).ok());
  ExpectRefused(Items({Decode(0, 5)}), "slot 0: start_pos 5, computed 3");
  ASSERT_TRUE(Execute(Items({Decode(0, 3)})).ok());
  ExpectRefused(Items({Decode(0, 4)}), "slot 0: 1 blocks of 4 for 5 positions");
  batching::RankPlan freed = Items({Decode(0, 4, {1})});
  freed.freed_slots = {0};
  ExpectRefused(freed, "slot 0: is empty and the item has no init");
  EXPECT_TRUE(Execute(Items({Decode(0, 4, {1})})).ok());  // all those refusals left the slot alone
  EXPECT_TRUE(Execute(Free(0)).ok());
  EXPECT_FALSE(group_.runner(0).slots().slot(0).in_use);
}

// What travels in fixed sizes has them from the plan, before anything is sent, so that this rank alone can ask.
TEST_F(RunnerPlansTest, DecodesThatAreNoneAreRefused) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "nothing has a fixed size on the CPU";
  if (!HasDevices(2)) GTEST_SKIP() << "skipped: needs 2 devices";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4});
  const auto refusal = [&](int32_t most_rows, const batching::RankPlan& plan) {
    batching::StepPlan step;
    step.exchange_version = batching::kDecodeExchange;
    step.rank_rows = {most_rows, 0};
    const auto result = two.runner(0).Execute(step, plan, absl::Now());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    return std::string(result.status().message());
  };
  EXPECT_EQ(refusal(4, Items({Prefill(2, {1, 2, 3}, {0})})), "plan: slot 2: 3 queries in a step of plain decodes");
  batching::StepItem unsampled = Prefill(2, {1}, {0});
  unsampled.sample = false;
  EXPECT_EQ(refusal(4, Items({unsampled})), "plan: slot 2: 1 queries and no sample in a step of plain decodes");
  for (const int32_t most_rows : {1, 0}) {
    EXPECT_EQ(refusal(most_rows, Items({Prefill(0, {1}, {0}), Prefill(1, {2}, {1})})),
              absl::StrCat("plan: 2 decodes, of any rank at most ", most_rows));
  }
}

// Refused before anything is sent, so that this rank alone can ask.
TEST_F(RunnerPlansTest, TransfersThatDoNotFitAreRefused) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "devices give away no rows";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4});
  const auto refusal = [&](std::vector<batching::RowTransfer> transfers) {
    batching::StepPlan step;
    step.transfers = std::move(transfers);
    const auto result = two.runner(0).Execute(step, Items({Prefill(0, {1, 2, 3}, {0})}), absl::Now());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    return std::string(result.status().message());
  };
  EXPECT_EQ(refusal({{0, 2, 1}}), "plan: transfer of 1 rows from rank 0 to rank 2: wants two ranks of 2");
  EXPECT_EQ(refusal({{-1, 0, 1}}), "plan: transfer of 1 rows from rank -1 to rank 0: wants two ranks of 2");
  EXPECT_EQ(refusal({{0, 0, 1}}), "plan: transfer of 1 rows from rank 0 to rank 0: wants two ranks of 2");
  EXPECT_EQ(refusal({{0, 1, 0}}), "plan: transfer of 0 rows from rank 0 to rank 1: wants at least one row");
  EXPECT_EQ(refusal({{0, 1, 1}, {1, 0, 1}}),
            "plan: transfer of 1 rows from rank 1 to rank 0: rank 0 gives and borrows");
  EXPECT_EQ(refusal({{0, 1, 4}}), "plan: transfers of 4 of the 3 rows of rank 0");
}

}  // namespace
}  // namespace switchyard::model
