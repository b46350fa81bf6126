#include "scheduler/offload/copy_timeline.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/offload/plan_text.h"

namespace switchyard::offload {
namespace {

constexpr OffloadShape kShape = {2, 4, 4};  // keys 0 … 3 of layer 0, 4 … 7 of layer 1
constexpr CopyCost kCost = {100, 4};        // chunks of 25

LayerPlan Steps(std::vector<PlanStep> steps) { return {std::move(steps)}; }
PlanStep Copy(ExpertKey key, int32_t slot) { return {PlanStep::kCopy, key, slot}; }
PlanStep Use(ExpertKey key, int32_t slot) { return {PlanStep::kUse, key, slot}; }
PlanStep Prefetch(ExpertKey key, int32_t slot) { return {PlanStep::kPrefetch, key, slot}; }
PlanStep Drop(ExpertKey key, int32_t slot) { return {PlanStep::kDrop, key, slot}; }

TEST(CopyTimelineTest, ResidentExpertsTakeTheLayersTicksExactly) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0, 1, 2});
  const std::vector<int32_t> rows = {1, 1, 1, 0};
  EXPECT_EQ(timeline.Run(Steps({Use(0, 0), Use(1, 1), Use(2, 2)}), {0, rows, 100}), 100);
  EXPECT_EQ(timeline.counts().hits, 3);
  EXPECT_EQ(timeline.counts().link_ticks, 0);
}

TEST(CopyTimelineTest, ResidentExpertComputesWhileTheOtherIsCopied) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0});
  const std::vector<int32_t> rows = {3, 1, 0, 0};
  // 75 ticks of expert 0, the copy is over at 100, 25 ticks of expert 1.
  EXPECT_EQ(timeline.Run(Steps({Copy(1, 1), Use(0, 0), Use(1, 1)}), {0, rows, 100}), 125);
  EXPECT_EQ(timeline.counts().hits, 1);
  EXPECT_EQ(timeline.counts().copies, 1);
}

TEST(CopyTimelineTest, DemandOvertakesAPrefetchAtAChunkBoundary) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0});
  const std::vector<int32_t> rows = {1, 0, 0, 0};
  // The layer takes 60 ticks: the prefetch is in its third chunk, which ends at 75.
  EXPECT_EQ(timeline.Run(Steps({Use(0, 0), Prefetch(5, 1)}), {0, rows, 60}), 60);
  EXPECT_EQ(timeline.PendingChunks(5), 1);
  // Expert 4 is copied from 75 to 175, then computes.
  EXPECT_EQ(timeline.Run(Steps({Copy(4, 2), Use(4, 2)}), {1, rows, 60}), 175 + 60 - 60);
  // The last chunk of the prefetch came while it computed.
  EXPECT_TRUE(timeline.Arrived(5));
}

TEST(CopyTimelineTest, UseOfAPrefetchUnderWayWaitsForWhatIsLeftAndGoesBeforeDemand) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0});
  const std::vector<int32_t> one = {1, 0, 0, 0};
  const std::vector<int32_t> two = {1, 1, 0, 0};
  timeline.Run(Steps({Use(0, 0), Prefetch(4, 1)}), {0, one, 50});
  // From 50: two chunks of 4 until 100; 5 is copied until 200; 4 computes from 100 to 130, 5 from 200 to 230.
  EXPECT_EQ(timeline.Run(Steps({Copy(5, 2), Use(4, 1), Use(5, 2)}), {1, two, 60}), 180);
  EXPECT_EQ(timeline.counts().late, 1);
  EXPECT_EQ(timeline.counts().wasted, 0);
}

TEST(CopyTimelineTest, CopyIntoAUsedSlotWaitsForTheUse) {
  CopyTimeline timeline({2, 4, 1}, kCost);
  timeline.Preload({0});
  const std::vector<int32_t> rows = {1, 1, 0, 0};
  // 30 of expert 0, then 100 of copying, then 30 of expert 1.
  EXPECT_EQ(timeline.Run(Steps({Use(0, 0), Copy(1, 0), Use(1, 0)}), {0, rows, 60}), 160);
}

TEST(CopyTimelineTest, DroppedAndOverwrittenPrefetchesStopAndAreWasted) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0});
  const std::vector<int32_t> rows = {1, 0, 0, 0};
  timeline.Run(Steps({Use(0, 0), Prefetch(5, 1), Prefetch(6, 2)}), {0, rows, 30});
  timeline.Run(Steps({Drop(5, 1), Copy(4, 3), Use(4, 3)}), {1, rows, 30});
  EXPECT_EQ(timeline.counts().wasted, 1);
  EXPECT_TRUE(timeline.Arrived(5));
  // 6 is under way (from 150); 7 takes its slot in the middle of a plan that overwrites it twice.
  timeline.Run(Steps({Use(0, 0), Prefetch(7, 2), Prefetch(5, 2)}), {0, rows, 400});
  EXPECT_TRUE(timeline.Arrived(5));
}

TEST(CopyTimelineTest, PrefetchBehindABlockedOneGoesOn) {
  CopyTimeline timeline(kShape, kCost);
  timeline.Preload({0, 1});
  const std::vector<int32_t> rows = {1, 1, 0, 0};
  // The first prefetch waits until expert 0 has computed (at 100), the second one does not.
  timeline.Run(Steps({Use(0, 0), Use(1, 1), Prefetch(4, 0), Prefetch(5, 2)}), {0, rows, 200});
  EXPECT_TRUE(timeline.Arrived(5));
  EXPECT_TRUE(timeline.Arrived(4));
  EXPECT_EQ(timeline.counts().link_ticks, 200);
}

// Two clocks run the same plans; one also tries plans that copy, use, prefetch, drop and overwrite: they agree.
TEST(CopyTimelineTest, TryingAPlanChangesNothing) {
  std::mt19937 random(5);
  const std::vector<int32_t> rows = {1, 1, 1, 1};
  CopyTimeline tried(kShape, kCost), plain(kShape, kCost);
  const auto random_plan = [&](int layer) {
    std::vector<ExpertKey> holds(plain.holds().begin(), plain.holds().end());
    std::vector<PlanStep> steps;
    for (int i = 0; i < 4; ++i) {
      const int32_t slot = static_cast<int32_t>(random() % 4);
      const ExpertKey key = layer * 4 + static_cast<ExpertKey>(random() % 4);
      ExpertKey& held = holds[static_cast<size_t>(slot)];
      // A plan copies an expert once, and none that was there when it began.
      const auto same = [key](const PlanStep& step) { return step.key == key; };
      const bool is_held = std::find(plain.holds().begin(), plain.holds().end(), key) != plain.holds().end() ||
                           std::any_of(steps.begin(), steps.end(), same);
      const auto kind = static_cast<PlanStep::Kind>(random() % 4);
      if (kind == PlanStep::kUse && held != kNoExpert && held / 4 == layer) steps.push_back(Use(held, slot));
      if (kind == PlanStep::kDrop && held != kNoExpert) steps.push_back(Drop(held, slot)), held = kNoExpert;
      if (kind == PlanStep::kCopy && !is_held) steps.push_back(Copy(key, slot)), steps.push_back(Use(key, slot));
      if (kind == PlanStep::kPrefetch && !is_held) steps.push_back(Prefetch(key, slot));
      if (!is_held && (kind == PlanStep::kCopy || kind == PlanStep::kPrefetch)) held = key;
    }
    return Steps(std::move(steps));
  };
  for (int gate = 0; gate < 4000; ++gate) {
    const LayerNeed need = {gate % 2, rows, 40};
    tried.Try(random_plan(gate % 2), need);
    const LayerPlan plan = random_plan(gate % 2);
    const int64_t busy = plain.counts().link_ticks;
    const CopyTimeline::Outlook outlook = tried.Try(plan, need);
    ASSERT_EQ(outlook.ticks, plain.Run(plan, need)) << gate << ": " << TextOf(plan);
    ASSERT_EQ(outlook.link_ticks, plain.counts().link_ticks - busy);
    ASSERT_EQ(tried.Run(plan, need), outlook.ticks);
    ASSERT_EQ(tried.counts().hits, plain.counts().hits);
    ASSERT_EQ(tried.counts().wasted, plain.counts().wasted);
    ASSERT_TRUE(std::equal(tried.holds().begin(), tried.holds().end(), plain.holds().begin()));
    for (ExpertKey key = 0; key < 8; ++key) ASSERT_EQ(tried.PendingChunks(key), plain.PendingChunks(key)) << gate;
  }
  EXPECT_GT(plain.counts().wasted, 0);
  EXPECT_GT(plain.counts().late, 0);
}

TEST(CopyTimelineTest, LayerWithoutRowsTakesItsTime) {
  CopyTimeline timeline(kShape, kCost);
  const std::vector<int32_t> rows = {0, 0, 0, 0};
  EXPECT_EQ(timeline.Run({}, {0, rows, 60}), 60);
}

}  // namespace
}  // namespace switchyard::offload
