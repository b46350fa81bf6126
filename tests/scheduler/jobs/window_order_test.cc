#include "scheduler/jobs/window_order.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

std::vector<int64_t> EpochOf(const WindowOrder& order, int64_t num_windows, int64_t epoch) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_windows; ++i) windows.push_back(order.WindowOf(epoch * num_windows + i));
  return windows;
}

TEST(WindowOrderTest, EveryEpochHasEachWindowOnce) {
  for (const int64_t num_windows : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    const WindowOrder order(7, num_windows);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> windows = EpochOf(order, num_windows, epoch);
      std::sort(windows.begin(), windows.end());
      for (int64_t i = 0; i < num_windows; ++i) ASSERT_EQ(windows[i], i) << num_windows << " windows";
    }
  }
}

TEST(WindowOrderTest, EpochsAndSeedsDiffer) {
  const WindowOrder order(7, 100), other(8, 100);
  EXPECT_NE(EpochOf(order, 100, 0), EpochOf(order, 100, 1));
  EXPECT_NE(EpochOf(order, 100, 0), EpochOf(other, 100, 0));
  EXPECT_EQ(EpochOf(order, 100, 5), EpochOf(WindowOrder(7, 100), 100, 5));
}

// A checkpoint that was written on one machine goes on with the same data on another, and with the next version.
TEST(WindowOrderTest, StaysWhatItIs) {
  // (As a program in Python gives it, too.)
  EXPECT_EQ(EpochOf(WindowOrder(42, 10), 10, 0), (std::vector<int64_t>{8, 0, 4, 3, 9, 1, 2, 5, 6, 7}));
  EXPECT_EQ(WindowOrder(42, 1000003).WindowOf(2000006), 122404);
}

// Where windows go is spread evenly: of neighbours, the mean distance is that of a random order, a third.
TEST(WindowOrderTest, NeighboursArePartedEvenly) {
  const int64_t num_windows = 10000;
  const std::vector<int64_t> windows = EpochOf(WindowOrder(3, num_windows), num_windows, 0);
  double distance = 0;
  for (size_t i = 1; i < windows.size(); ++i) distance += static_cast<double>(std::abs(windows[i] - windows[i - 1]));
  EXPECT_NEAR(distance / (static_cast<double>(num_windows) * (windows.size() - 1)), 1.0 / 3, 0.01);
}

}  // namespace
}  // namespace switchyard::jobs
