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

TEST(WorkerMetricsPageTest, ThePageSaysHowExpertsAreCopied) {
  WorkerMetrics metrics;
  const int port = metrics.Expose("127.0.0.1", 0);
  ASSERT_GT(port, 0);
  moe::ExpertOffloadCounters now, reported;
  metrics.ObserveExperts(now, &reported);  // from memory to memory
  EXPECT_THAT(PageOf(port, 30), testing::Not(testing::HasSubstr("switchyard_worker_expert_copy_path")));
  now.path = moe::CopyPath::kRegisteredReadOnly;
  metrics.ObserveExperts(now, &reported);
  now.path = moe::CopyPath::kPinnedPieces;  // of a later group
  metrics.ObserveExperts(now, &reported);
  const std::string page = PageOf(port, 30);
  EXPECT_THAT(page, testing::HasSubstr("switchyard_worker_expert_copy_path{path=\"pinned_pieces\"} 1"));
  EXPECT_THAT(page, testing::HasSubstr("switchyard_worker_expert_copy_path{path=\"registered_read_only\"} 0"));
}

TEST(WorkerMetricsTest, AnotherStoreCountsAnew) {
  WorkerMetrics metrics;
  moe::ExpertOffloadCounters now, reported;
  now.hits = 10;
  now.late = 5;
  metrics.ObserveExperts(now, &reported);
  now.hits = 12;
  now.late = 1;  // of another store: counters do not fall
  metrics.ObserveExperts(now, &reported);
  EXPECT_EQ(metrics.expert_hits->Value(), 22);
  EXPECT_EQ(metrics.expert_late->Value(), 6);
}

}  // namespace
}  // namespace switchyard::worker
