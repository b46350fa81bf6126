// Metrics of how soon training made way, of a worker that serves and trains.
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "workers/session/core_share.h"

namespace switchyard::worker {
namespace {

class YieldMetricsTest : public testing::Test {
 protected:
  // This thread computes when the gate is shut, and leaves so long after.
  void YieldAfter(absl::Duration time) {
    share.gate.OpenFor(absl::Hours(1));
    share.gate.Enter();
    share.gate.Shut();
    absl::SleepFor(time);
    share.gate.Leave();
  }
  uint64_t yields() const { return metrics.train_yield_seconds->Collect().histogram.sample_count; }
  double late() const { return metrics.train_late_yields->Value(); }

  WorkerMetrics metrics;
  CoreShare share{&metrics};
};

TEST_F(YieldMetricsTest, OneAboveTheLimitIsLate) {
  share.gate.SetLimit(absl::Milliseconds(1));
  YieldAfter(absl::Milliseconds(3));
  EXPECT_EQ(yields(), 1u);
  EXPECT_EQ(late(), 1);
  share.gate.SetLimit(absl::Hours(1));
  YieldAfter(absl::Milliseconds(3));
  EXPECT_EQ(yields(), 2u);
  EXPECT_EQ(late(), 1) << "below the limit as it is now";
}

TEST_F(YieldMetricsTest, OneAtTheLimitIsNot) {
  metrics.ObserveYield(absl::Milliseconds(50), absl::Milliseconds(50));
  EXPECT_EQ(late(), 0);
  metrics.ObserveYield(absl::Milliseconds(51), absl::Milliseconds(50));
  EXPECT_EQ(late(), 1);
  EXPECT_EQ(yields(), 2u);
}

}  // namespace
}  // namespace switchyard::worker
