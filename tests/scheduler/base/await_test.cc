// Waits until a deadline of the monotonic clock.
#include "scheduler/base/await.h"

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/clock.h"

namespace switchyard {
namespace {

TEST(MonotonicNowTest, BeginsAtTheWallClocksTimeAndNeverGoesBack) {
  const absl::Time first = MonotonicNow();
  EXPECT_LT(absl::AbsDuration(first - absl::Now()), absl::Hours(1));
  EXPECT_LE(first, MonotonicNow());
}

TEST(AwaitUntilTest, AConditionThatHoldsCountsWhateverTheDeadline) {
  absl::Mutex mu;
  const absl::MutexLock lock(&mu);
  const bool yes = true;
  EXPECT_TRUE(AwaitUntil(&mu, absl::Condition(&yes), absl::InfinitePast()));
  EXPECT_TRUE(AwaitUntil(&mu, absl::Condition(&yes), absl::InfiniteFuture()));
}

TEST(AwaitUntilTest, ADeadlineThatHasPassedEndsIt) {
  absl::Mutex mu;
  const absl::MutexLock lock(&mu);
  const bool no = false;
  EXPECT_FALSE(AwaitUntil(&mu, absl::Condition(&no), absl::InfinitePast()));
  EXPECT_FALSE(AwaitUntil(&mu, absl::Condition(&no), MonotonicNow()));
}

TEST(AwaitUntilTest, WithoutADeadlineItWaitsForTheCondition) {
  absl::Mutex mu;
  bool there = false;
  std::thread other([&] {
    const absl::MutexLock lock(&mu);
    there = true;
  });
  {
    const absl::MutexLock lock(&mu);
    EXPECT_TRUE(AwaitUntil(&mu, absl::Condition(&there), absl::InfiniteFuture()));
  }
  other.join();
}

// The clock here stands still while the wall clock passes the deadline, as after the latter was set forward.
TEST(AwaitUntilTest, TheWallClockDoesNotEndIt) {
  static constexpr absl::Time kBegin = absl::UnixEpoch();
  static int readings;
  readings = 0;
  simulated_now = []() -> absl::Time { return ++readings < 4 ? kBegin : kBegin + absl::Hours(1); };
  absl::Mutex mu;
  bool in_time = true;
  {
    const absl::MutexLock lock(&mu);
    const bool no = false;
    in_time = AwaitUntil(&mu, absl::Condition(&no), kBegin + absl::Milliseconds(1));
  }
  simulated_now = nullptr;
  EXPECT_FALSE(in_time);
  EXPECT_EQ(readings, 4);
}

}  // namespace
}  // namespace switchyard
