// Steps that sample under masks, which come by the inbox: what they sample, and masks that fit no plan or do not come.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/runner_fixture.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

class RunnerMasksTest : public ModelRunnerTest {
 protected:
  RunnerMasksTest()
      : masked_(fixture_.dir, {.dtype = DType::kF32, .block_size = 4, .batch = 4, .in_flight = 2, .masks = &inbox_}) {}

  static batching::StepItem Masked(batching::StepItem item) {
    if (item.init) item.init->sampling.constrained = true;
    item.masked = true;
    return item;
  }
  batching::StepPlan Next() {
    batching::StepPlan step;
    step.group_epoch = 1;
    step.step = ++step_;
    return step;
  }
  static absl::Time Soon() { return absl::Now() + absl::Seconds(60); }
  // One step with these masks, which are there before it.
  absl::StatusOr<batching::RankResult> Execute(const batching::RankPlan& plan, std::vector<batching::ItemMask> masks) {
    const batching::StepPlan step = Next();
    inbox_.Put(step.group_epoch, step.step, {.items = std::move(masks)});
    return masked_.runner(0).Execute(step, plan, Soon());
  }
  void ExpectRefused(std::vector<batching::ItemMask> masks, const std::string& message) {
    const auto result = Execute(Items({Prefill(0, {5}, {2}), Masked(Prefill(1, {1, 2, 3}, {0}))}), std::move(masks));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << message;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message));
  }
  int32_t vocab() const { return static_cast<int32_t>(masked_.config().vocab_size); }

  MaskInbox inbox_;
  RankGroup masked_;
};

TEST_F(RunnerMasksTest, EachItemIsSampledUnderItsOwnMask) {
  const auto free = ModelRunnerTest::Execute(Items({Prefill(0, {1, 2, 3}, {0})}));
  ASSERT_TRUE(free.ok());
  const int32_t best = free->items[0].tokens[0], other = best == 7 ? 8 : 7;
  std::string bits(static_cast<size_t>((vocab() + 7) / 8), '\0');
  bits[static_cast<size_t>(other / 8)] = static_cast<char>(1 << (other % 8));
  const auto first = Execute(Items({Masked(Prefill(0, {1, 2, 3}, {0})), Prefill(1, {1, 2, 3}, {1}),
                                    Masked(Prefill(2, {1, 2, 3}, {2})), Masked(Prefill(3, {1, 2, 3}, {3}))}),
                             {{.item = 0, .mask = {.ids = {other}, .bits = {}}},
                              {.item = 2, .mask = {.ids = {}, .bits = bits}},
                              {.item = 3, .mask = {}}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->items[0].tokens, Tokens{other});
  EXPECT_EQ(first->items[1].tokens, Tokens{best});
  EXPECT_EQ(first->items[2].tokens, Tokens{other});
  EXPECT_EQ(first->items[3].tokens, Tokens{best}) << "it has ended: any token will do";
  const auto second = Execute(Items({Masked(Decode(2, 3))}), {{.item = 0, .mask = {.ids = {4}, .bits = {}}}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->items[0].tokens, Tokens{4});
}

TEST_F(RunnerMasksTest, AStepWaitsForItsMasks) {
  const batching::StepPlan step = Next();
  std::thread link([&] {
    inbox_.Put(1, step.step + 1, {.items = {{.item = 0, .mask = {.ids = {6}, .bits = {}}}}});  // of the next one
    inbox_.Put(1, step.step, {.items = {{.item = 0, .mask = {.ids = {5}, .bits = {}}}}});
  });
  const auto result = masked_.runner(0).Execute(step, Items({Masked(Prefill(0, {1, 2, 3}, {0}))}), Soon());
  link.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].tokens, Tokens{5});
  EXPECT_GE(result->timings.mask_seconds, 0);
  const auto next = masked_.runner(0).Execute(Next(), Items({Masked(Decode(0, 3))}), Soon());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->items[0].tokens, Tokens{6});
}

// On a device the step before is of those that it samples by itself.
TEST_F(RunnerMasksTest, AStepUnderMasksFollowsOneWithoutThatIsNotFinishedYet) {
  ModelRunner& runner = masked_.runner(0);
  ASSERT_TRUE(runner.Start(Next(), Items({Prefill(0, {1, 2, 3}, {0})}), Soon()).ok());
  const batching::StepPlan step = Next();
  inbox_.Put(1, step.step, {.items = {{.item = 1, .mask = {.ids = {5}, .bits = {}}}}});
  ASSERT_TRUE(runner.Start(step, Items({Decode(0, 3), Masked(Prefill(1, {1, 2, 3}, {1}))}), Soon()).ok());
  const auto first = runner.Finish(), second = runner.Finish();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->items[0].tokens.size(), 1u);
  EXPECT_EQ(second->items[1].tokens, Tokens{5});
}

TEST_F(RunnerMasksTest, MasksThatDoNotFitThePlanAreRefused) {
  const grammar::TokenMask good = {.ids = {1}, .bits = {}};
  ExpectRefused({}, "slot 1: its mask is not among those of its step");
  ExpectRefused({{.item = 0, .mask = good}}, "slot 1: its mask is not among those of its step");
  ExpectRefused({{.item = -1, .mask = good}}, "slot 1: its mask is not among those of its step");
  ExpectRefused({{.item = 1, .mask = good}, {.item = 1, .mask = good}}, "masks: 2, expected 1");
  ExpectRefused({{.item = 1, .mask = {.ids = {1, vocab()}, .bits = {}}}},
                "slot 1: a mask with ids that do not rise within [0, 256)");
  ExpectRefused({{.item = 1, .mask = {.ids = {-1}, .bits = {}}}}, "slot 1: a mask with ids that do not rise");
  ExpectRefused({{.item = 1, .mask = {.ids = {3, 2}, .bits = {}}}}, "slot 1: a mask with ids that do not rise");
  ExpectRefused({{.item = 1, .mask = {.ids = {}, .bits = "x"}}}, "slot 1: a mask of 1 bytes, expected 32");
  const auto after = Execute(Items({Masked(Prefill(1, {1, 2, 3}, {0}))}), {{.item = 0, .mask = good}});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->items[0].tokens, Tokens{1});
}

TEST_F(RunnerMasksTest, AMaskUnderWhichNothingIsLeftEndsItsSequenceAlone) {
  const auto result =
      Execute(Items({Prefill(0, {5}, {2}), Masked(Prefill(1, {1, 2, 3}, {0}))}),
              {{.item = 1, .mask = {.ids = {}, .bits = std::string(static_cast<size_t>((vocab() + 7) / 8), '\0')}}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].status, batching::ItemStatus::kOk);
  EXPECT_EQ(result->items[1].status, batching::ItemStatus::kNonFinite);
}

TEST_F(RunnerMasksTest, PlansWhoseMarksContradictTheirConstraintsAreRefused) {
  batching::StepItem item = Prefill(0, {1, 2, 3}, {0});
  item.masked = true;
  EXPECT_THAT(std::string(Execute(Items({item}), {}).status().message()),
              HasSubstr("slot 0: a mask, and no constraint"));
  item.init->sampling.constrained = true;
  item.masked = false;
  EXPECT_THAT(std::string(Execute(Items({item}), {}).status().message()),
              HasSubstr("slot 0: a constraint, and no mask"));
  const auto nobody = ModelRunnerTest::Execute(Items({Masked(Prefill(0, {1, 2, 3}, {0}))}));
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(nobody.status().message()), HasSubstr("nobody brings masks"));
}

TEST_F(RunnerMasksTest, AnAbortEndsAStepThatWaitsForMasks) {
  std::thread link([&] { inbox_.Abort(1, "rank 1 was lost"); });
  const auto result = masked_.runner(0).Execute(Next(), Items({Masked(Prefill(0, {1, 2, 3}, {0}))}), Soon());
  link.join();
  EXPECT_EQ(result.status(), absl::AbortedError("rank 1 was lost"));
}

}  // namespace
}  // namespace switchyard::model
