#include "server/engine/batching_delay.h"

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(100);

TEST(BatchingDelay, DoesNotWaitBeforeItKnowsTheCostOfARow) {
  BatchingDelay window;
  EXPECT_EQ(window.OpensAt(512, 4096, kNow), kNow);
  window.Observe(16, absl::Seconds(1));  // a batch of decodes
  EXPECT_EQ(window.OpensAt(512, 4096, kNow), kNow);
}

TEST(BatchingDelay, WaitsAHundredthOfTheStepFromTheFirstToCome) {
  BatchingDelay window;
  window.Observe(100, absl::Milliseconds(20));  // 0.2 ms a row
  EXPECT_EQ(window.OpensAt(512, 4096, kNow), kNow + absl::Microseconds(1024));
  // More requests have come: the wait is longer, but still counts from the first one.
  EXPECT_EQ(window.OpensAt(600, 4096, kNow + absl::Microseconds(300)), kNow + absl::Microseconds(1200));
  EXPECT_EQ(window.OpensAt(4000, 4096, kNow), kNow + absl::Milliseconds(2));
  window.Close();
  EXPECT_EQ(window.OpensAt(100, 4096, kNow + absl::Seconds(1)), kNow + absl::Seconds(1) + absl::Microseconds(200));
}

TEST(BatchingDelay, AFullStepWaitsForNobody) {
  BatchingDelay window;
  window.Observe(100, absl::Milliseconds(20));
  EXPECT_EQ(window.OpensAt(4096, 4096, kNow), kNow);
}

TEST(BatchingDelay, TheCostOfARowIsARecentMean) {
  BatchingDelay window;
  window.Observe(100, absl::Milliseconds(10));
  for (int i = 0; i < 100; ++i) window.Observe(1000, absl::Milliseconds(200));
  EXPECT_GT(window.OpensAt(500, 4096, kNow), kNow + absl::Microseconds(999));
  EXPECT_LE(window.OpensAt(500, 4096, kNow), kNow + absl::Microseconds(1000));
}

}  // namespace
}  // namespace switchyard::server
