#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"
#include "tests/half_requests.h"

namespace switchyard::server {
namespace {

TEST(ServerMetricsPageTest, HalfRequestsKeepNoScraperOut) {
  ServerMetrics metrics("tiny");
  const int port = metrics.Expose("127.0.0.1", 0);
  ASSERT_GT(port, 0);
  const HalfRequests half(port, 60);
  EXPECT_THAT(PageOf(port, 30), testing::HasSubstr("switchyard_num_requests_running"));
}

}  // namespace
}  // namespace switchyard::server
