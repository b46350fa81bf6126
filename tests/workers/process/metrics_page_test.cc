#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/half_requests.h"
#include "workers/process/metrics.h"

namespace switchyard::worker {
namespace {

TEST(WorkerMetricsPageTest, HalfRequestsKeepNoScraperOut) {
  WorkerMetrics metrics;
  const int port = metrics.Expose("127.0.0.1", 0);
  ASSERT_GT(port, 0);
  const HalfRequests half(port, 60);
  EXPECT_THAT(PageOf(port, 30), testing::HasSubstr("switchyard_worker_"));
}

}  // namespace
}  // namespace switchyard::worker
