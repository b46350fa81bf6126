// What workers spent on steps, between two moments.
#include "server/engine/worker_times.h"

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

absl::Time At(int second) { return absl::FromUnixSeconds(second); }

std::vector<batching::RankResult> Ranks(double first, double second) {
  std::vector<batching::RankResult> ranks(2);
  ranks[0].timings = {.total_seconds = first, .attention_seconds = 1, .expert_seconds = 2, .exchange_seconds = 3};
  ranks[1].timings = {.total_seconds = second};
  return ranks;
}

TEST(WorkerTimesTest, SinceATimeAreTheStepsSentThenOrLater) {
  WorkerTimes times;
  EXPECT_TRUE(times.Since(At(0)).empty()) << "no step";
  times.Add(At(1), Ranks(1, 10));
  times.Add(At(2), Ranks(2, 20));
  times.Add(At(3), Ranks(4, 40));
  const std::vector<WorkerTime> two = times.Since(At(2));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].steps, 2);
  EXPECT_EQ(two[0].total_seconds, 6);
  EXPECT_EQ(two[0].attention_seconds, 2);
  EXPECT_EQ(two[0].expert_seconds, 4);
  EXPECT_EQ(two[0].exchange_seconds, 6);
  EXPECT_EQ(two[1].total_seconds, 60);
  EXPECT_EQ(times.Since(At(0))[0].steps, 3);
  EXPECT_TRUE(times.Since(At(4)).empty());
}

TEST(WorkerTimesTest, SinceTotalsOfTheSameGroup) {
  WorkerTimes times;
  times.Add(At(1), Ranks(1, 10));
  const WorkerTimes::Totals then = times.totals();
  times.Add(At(2), Ranks(2, 20));
  ASSERT_EQ(times.Since(then).size(), 2u);
  EXPECT_EQ(times.Since(then)[1].total_seconds, 20);
  EXPECT_EQ(times.Since(then)[1].steps, 1);
  times.Clear();
  times.Add(At(3), Ranks(4, 40));
  EXPECT_TRUE(times.Since(then).empty());
  EXPECT_EQ(times.Since(At(0))[0].total_seconds, 4);
}

TEST(WorkerTimesTest, OnlyTheLatestStepsAreKnown) {
  WorkerTimes times;
  const auto steps = static_cast<int>(WorkerTimes::kMostSteps);
  for (int i = 0; i < steps + 10; ++i) times.Add(At(i), Ranks(1, 1));
  EXPECT_TRUE(times.Since(At(0)).empty());
  EXPECT_TRUE(times.Since(At(9)).empty());
  EXPECT_EQ(times.Since(At(11))[0].steps, steps - 1);
  EXPECT_EQ(times.Since(At(steps + 9))[0].steps, 1);
}

}  // namespace
}  // namespace switchyard::server
