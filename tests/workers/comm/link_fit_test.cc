// The line through times of all-to-alls, and that a group measures it alike.
#include "workers/comm/group/link_fit.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

std::vector<LinkSample> OnALine(double start, double rate) {
  std::vector<LinkSample> samples;
  for (const double bytes : {1e3, 4e3, 16e3, 64e3, 256e3}) samples.push_back({bytes, start + bytes / rate});
  return samples;
}

TEST(LinkFitTest, FindsALine) {
  const fleet::LinkFit fit = FitLinks(OnALine(1e-4, 1e8));
  EXPECT_NEAR(fit.start_seconds, 1e-4, 1e-9);
  EXPECT_NEAR(fit.bytes_per_second, 1e8, 1);
  EXPECT_NEAR(fit.r_squared, 1, 1e-9);
  EXPECT_NEAR(fit.Seconds(1e6), 0.0101, 1e-7);
}

// 64 kB pass at once after a pause: the rate is that behind them.
TEST(LinkFitTest, WhatPassesAtOnceDoesNotCount) {
  std::vector<LinkSample> samples = OnALine(1e-4, 1e6);
  for (size_t i = 0; i < 4; ++i) samples[i].seconds = 1e-4;
  const fleet::LinkFit fit = FitLinks(samples);
  EXPECT_NEAR(fit.start_seconds, 0, 1e-4);
  EXPECT_NEAR(fit.bytes_per_second, 1e6, 1e4);
  EXPECT_LT(fit.r_squared, 0.99);
}

TEST(LinkFitTest, NoStartIsBelowZero) {
  const fleet::LinkFit fit = FitLinks({{1, 1}, {2, 4}, {3, 9}});
  EXPECT_EQ(fit.start_seconds, 0);
  EXPECT_TRUE(fit.measured());
}

TEST(LinkFitTest, WhatIsNoLineIsNotMeasured) {
  EXPECT_FALSE(FitLinks({}).measured());
  EXPECT_FALSE(FitLinks({{1, 1}, {2, 2}}).measured()) << "two sizes";
  EXPECT_FALSE(FitLinks({{5, 1}, {5, 2}, {5, 3}}).measured()) << "one size";
  EXPECT_FALSE(FitLinks({{1, 3}, {2, 2}, {3, 1}}).measured()) << "more bytes are faster";
}

class MeasureLinksTest : public testing::TestWithParam<test::Backend> {};
INSTANTIATE_TEST_SUITE_P(Groups, MeasureLinksTest, testing::ValuesIn(test::kBackends),
                         [](const auto& i) { return test::BackendName(i.param); });

// Whatever was measured, all ranks have it.
TEST_P(MeasureLinksTest, AllRanksAgree) {
  std::vector<fleet::LinkFit> fits(3);
  test::ExpectRanksOk(GetParam(), 3, [&](Communicator* comm) -> absl::Status {
    ASSIGN_OR_RETURN(fits[static_cast<size_t>(comm->rank())], MeasureLinks(comm, test::Soon()));
    return absl::OkStatus();
  });
  EXPECT_EQ(fits[0], fits[1]);
  EXPECT_EQ(fits[0], fits[2]);
  test::ExpectRanksOk(GetParam(), 1, [](Communicator* comm) -> absl::Status {
    ASSIGN_OR_RETURN(const fleet::LinkFit alone, MeasureLinks(comm, test::Soon()));
    return alone.measured() ? absl::InternalError("one rank has no links") : absl::OkStatus();
  });
}

TEST_P(MeasureLinksTest, APeerThatIsGoneEndsIt) {
  auto ranks = test::MakeGroup(GetParam(), 2);
  const std::vector<absl::Status> ends = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    if (comm->rank() == 1) {
      comm->Abort("as if killed");
      return absl::OkStatus();
    }
    return MeasureLinks(comm, test::Soon()).status();
  });
  EXPECT_TRUE(absl::IsUnavailable(ends[0])) << ends[0];
}

}  // namespace
}  // namespace switchyard::comm
