#include "scheduler/offload/wave_planner.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/offload/plan_text.h"

namespace switchyard::offload {
namespace {

constexpr int64_t kNoWait = std::numeric_limits<int64_t>::max();

class WavePlannerTest : public testing::Test {
 protected:
  WavePlannerTest() : cache_({2, 4, 3}), planner_(&cache_, SharedSlots(cache_.shape())) {}
  void Hold(ExpertKey key, int32_t slot) {
    cache_.StartCopy(key, slot, true);
    cache_.Arrive(key);
  }
  std::string Plan(std::vector<int32_t> rows, int64_t wait = kNoWait) {
    LayerPlan plan;
    planner_.Plan(
        {0, rows, 100}, [this](ExpertKey key) { return worth_[key]; }, wait, &plan);
    return TextOf(plan);
  }
  ExpertCache cache_;
  WavePlanner planner_;
  std::vector<int64_t> worth_ = std::vector<int64_t>(8, 0);  // [L * E]
};

TEST_F(WavePlannerTest, ResidentFirstAndTheSlotWorthLeast) {
  Hold(0, 0), Hold(4, 1), Hold(5, 2);
  worth_ = {0, 0, 0, 0, 9, 3, 0, 0};
  EXPECT_EQ(Plan({1, 1, 0, 0}), "copy 1>2 use 0@0 use 1@2");
  EXPECT_TRUE(cache_.Holds(4));
}

TEST_F(WavePlannerTest, EmptySlotsBeforeEvictionsAndMostRowsFirst) {
  Hold(4, 1);
  EXPECT_EQ(Plan({0, 1, 2, 0}), "copy 2>0 copy 1>2 use 2@0 use 1@2");
}

TEST_F(WavePlannerTest, NeededExpertsAreNeverEvictedBeforeTheirUse) {
  Hold(0, 0), Hold(1, 1), Hold(4, 2);
  worth_ = {0, 0, 0, 0, 1000, 0, 0, 0};
  EXPECT_EQ(Plan({1, 1, 1, 0}), "copy 2>2 use 0@0 use 1@1 use 2@2");
}

TEST_F(WavePlannerTest, ALayerOverBudgetRunsInWavesThroughTwoSlots) {
  Hold(0, 0), Hold(4, 1), Hold(5, 2);
  worth_ = {5, 0, 0, 0, 0, 0, 0, 0};
  // The third copy takes the slot of the first one, which has computed by then; expert 0, worth more, stays.
  EXPECT_EQ(Plan({1, 1, 1, 1}), "copy 1>1 copy 2>2 use 0@0 use 1@1 copy 3>1 use 2@2 use 3@1");
  EXPECT_TRUE(cache_.Holds(0));
}

TEST_F(WavePlannerTest, FirstCopyWaitsForAUseWhereThatSavesEnough) {
  Hold(0, 0), Hold(4, 1), Hold(5, 2);
  worth_ = {0, 0, 0, 0, 50, 60, 0, 0};
  EXPECT_EQ(Plan({1, 1, 0, 0}, 49), "use 0@0 copy 1>0 use 1@0");
}

TEST_F(WavePlannerTest, FirstCopyDoesNotWaitWhereItSavesTooLittle) {
  Hold(0, 0), Hold(4, 1), Hold(5, 2);
  worth_ = {0, 0, 0, 0, 50, 60, 0, 0};
  EXPECT_EQ(Plan({1, 1, 0, 0}, 50), "copy 1>1 use 0@0 use 1@1");
}

TEST_F(WavePlannerTest, PrefetchesComputeAfterWhatIsThereInTheirOrder) {
  Hold(3, 0);
  LayerPlan ahead;
  planner_.Prefetch(2, 1, &ahead);
  planner_.Prefetch(1, 2, &ahead);
  EXPECT_EQ(TextOf(ahead), "prefetch 2>1 prefetch 1>2");
  EXPECT_EQ(Plan({0, 1, 1, 1}), "use 3@0 use 2@1 use 1@2");
  EXPECT_EQ(cache_.state(1), ExpertState::kResident);
}

// The cheapest of many are those that a scan for each would find, whatever is asked for.
// The expert worth least has given up its slot: it has none to give again, and those of another layer come next.
TEST(WavePlannerThreeSlotsTest, AnExpertGivesUpItsSlotOnce) {
  ExpertCache cache({2, 5, 3});
  int32_t slot = 0;
  for (const ExpertKey key : {0, 5, 6}) {
    cache.StartCopy(key, slot++, true);
    cache.Arrive(key);
  }
  WavePlanner planner(&cache, SharedSlots(cache.shape()));
  const std::vector<int32_t> rows = {1, 0, 1, 1, 1};
  const std::vector<int64_t> worth = {-5, 1, 1, 1, 1, 0, 0, 0, 0, 0};
  LayerPlan plan;
  planner.Plan(
      {0, rows, 100}, [&worth](ExpertKey key) { return worth[static_cast<size_t>(key)]; }, kNoWait, &plan);
  EXPECT_EQ(TextOf(plan), "copy 2>1 use 0@0 copy 3>0 use 2@1 copy 4>2 use 3@0 use 4@2");
}

// The cheapest of many are those that a scan for each would find, whatever is asked for.
// What was worth least has given up its slot: it has none to give a second time.
TEST(WavePlannerTwoSlotsTest, AnExpertGivesUpItsSlotOnce) {
  ExpertCache cache({1, 5, 2});
  for (const ExpertKey key : {0, 1}) {
    cache.StartCopy(key, key, true);
    cache.Arrive(key);
  }
  WavePlanner planner(&cache, SharedSlots(cache.shape()));
  const std::vector<int32_t> rows = {1, 1, 1, 1, 1};
  LayerPlan plan;
  planner.Plan(
      {0, rows, 100}, [](ExpertKey key) { return key == 0 ? -5 : 0; }, kNoWait, &plan);
  EXPECT_EQ(TextOf(plan), "use 0@0 copy 2>0 use 1@1 copy 3>1 use 2@0 copy 4>0 use 3@1 use 4@0");
}

TEST(CheapestSlotsTest, AreThoseOfAScanForEach) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const int num_slots = static_cast<int>(random() % 40);
    const size_t most = random() % 12;
    std::vector<std::pair<int64_t, int32_t>> all;
    CheapestSlots cheapest;
    cheapest.Start(3);
    cheapest.Add(99, -1);
    cheapest.Start(most);
    for (int32_t slot = 0; slot < num_slots; ++slot) {
      const int64_t worth = random() % 10 == 0 ? CheapestSlots::kEmpty : static_cast<int64_t>(random() % 8);
      all.emplace_back(worth, slot);
      cheapest.Add(slot, worth);
    }
    cheapest.Sort();
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < std::min(most, all.size()); ++i) {
      ASSERT_FALSE(cheapest.empty());
      ASSERT_EQ(std::make_pair(cheapest.worth(), cheapest.slot()), all[i]) << trial;
      cheapest.Pop();
    }
    ASSERT_TRUE(cheapest.empty());
  }
}

TEST(WavePlannerOneSlotTest, EveryExpertTakesItsTurn) {
  ExpertCache cache({1, 3, 1});
  WavePlanner planner(&cache, SlotsPerLayer(cache.shape()));
  const std::vector<int32_t> rows = {1, 1, 1};
  LayerPlan plan;
  planner.Plan(
      {0, rows, 100}, [](ExpertKey) { return int64_t{0}; }, kNoWait, &plan);
  EXPECT_EQ(TextOf(plan), "copy 0>0 use 0@0 copy 1>0 use 1@0 copy 2>0 use 2@0");
}

TEST(SlotsPerLayerTest, FirstLayersGetWhatIsOver) {
  const std::vector<SlotRange> ranges = SlotsPerLayer({3, 4, 7});
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].end, 3);
  EXPECT_EQ(ranges[1].end, 5);
  EXPECT_EQ(ranges[2].end, 7);
}

}  // namespace
}  // namespace switchyard::offload
