#include "clients/cli/commands/bench_report.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

using testing::HasSubstr;

TEST(BenchReportTest, PercentilesInterpolate) {
  const Distribution d = Distribute({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.p50, 2.5);
  EXPECT_DOUBLE_EQ(d.p90, 3.7);
  EXPECT_DOUBLE_EQ(d.max, 4);
  EXPECT_DOUBLE_EQ(Distribute({5}).p99, 5);
  EXPECT_DOUBLE_EQ(Distribute({}).p99, 0);
}

TEST(BenchReportTest, CountsAndRates) {
  LoadResult result;
  result.elapsed = absl::Seconds(2);
  Sample ok;
  ok.first_token = absl::Milliseconds(10);
  ok.total = absl::Milliseconds(30);
  ok.gap_seconds = {0.01, 0.03};
  ok.num_tokens = 3;
  ok.num_prompt_tokens = 8;
  Sample failed;
  failed.num_tokens = 1;
  failed.error = "WORKER_LOST";
  result.samples = {ok, ok, failed};
  const BenchReport report = MakeReport(result);
  EXPECT_EQ(report.num_ok, 2);
  EXPECT_EQ(report.errors.at("WORKER_LOST"), 1);
  EXPECT_DOUBLE_EQ(report.requests_per_second, 1);
  EXPECT_DOUBLE_EQ(report.prompt_tokens_per_second, 8);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_second, 3.5);
  EXPECT_DOUBLE_EQ(report.first_token.p50, 0.01);
  EXPECT_DOUBLE_EQ(report.inter_token.mean, 0.02);
  EXPECT_DOUBLE_EQ(report.end_to_end.max, 0.03);
  std::ostringstream table;
  PrintReport(report, table);
  EXPECT_THAT(table.str(), HasSubstr("2 requests finished in 2.00 s, 1 failed"));
  EXPECT_THAT(table.str(), HasSubstr("WORKER_LOST"));
  EXPECT_EQ(ReportJson(report)["ttft_seconds"]["p50"], 0.01);
}

TEST(BenchLoadTest, ArrivalsArePoissonAndRepeatable) {
  LoadSpec spec;
  spec.rate_per_second = 100;
  spec.num_requests = 10000;
  spec.seed = 3;
  const std::vector<absl::Duration> arrivals = PoissonArrivals(spec);
  ASSERT_EQ(arrivals.size(), 10000u);
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_NEAR(absl::ToDoubleSeconds(arrivals.back()), 100, 4);  // 4 standard deviations
  int long_gaps = 0;                                            // of more than twice the mean: e^-2 of them
  for (size_t i = 1; i < arrivals.size(); ++i)
    long_gaps += arrivals[i] - arrivals[i - 1] > absl::Milliseconds(20) ? 1 : 0;
  EXPECT_NEAR(long_gaps / 1e4, std::exp(-2.0), 0.015);
  EXPECT_EQ(PoissonArrivals(spec), arrivals);
  spec.duration = absl::Seconds(1);
  EXPECT_LT(PoissonArrivals(spec).size(), 160u);
}

}  // namespace
}  // namespace switchyard::cli
