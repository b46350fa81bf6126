#include "server/jobs/journal/loss_curve.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;

class LossCurveTest : public testing::Test {
 protected:
  std::vector<LossPoint> Read(const std::string& file, int most) const {
    const absl::StatusOr<RootDir> root = RootDir::Open(dir_.path(), "the checkpoint root");
    EXPECT_TRUE(root.ok());
    const auto points = ReadLossCurve(*root, file, most);
    EXPECT_TRUE(points.ok()) << points.status();
    return points.ok() ? *points : std::vector<LossPoint>();
  }
  static std::string Rows(int steps) {
    std::string rows = "step,loss,others\n";
    for (int step = 1; step <= steps; ++step)
      absl::StrAppend(&rows, step, ",", 10.0 / step, ",", std::string(static_cast<size_t>(step % 90), '7'), "\n");
    return rows;
  }
  model::TempDir dir_;
};

TEST_F(LossCurveTest, RowsWithALossThatAreWhole) {
  dir_.Write("steps.csv", "step,loss\n1,2.5,9\n2,,9\n3,1.5,9\n4,1.2");
  EXPECT_THAT(Read("steps.csv", 10), ElementsAre(LossPoint{1, 2.5}, LossPoint{3, 1.5}));
}

TEST_F(LossCurveTest, NoFileAndNoRowsAreNoPoints) {
  EXPECT_THAT(Read("none.csv", 10), ElementsAre());
  dir_.Write("empty.csv", "");
  dir_.Write("head.csv", "step,loss\n");
  EXPECT_THAT(Read("empty.csv", 10), ElementsAre());
  EXPECT_THAT(Read("head.csv", 10), ElementsAre());
}

TEST_F(LossCurveTest, ASmallFileIsThinnedWithItsEnds) {
  dir_.Write("steps.csv", Rows(100));
  const auto points = Read("steps.csv", 10);
  ASSERT_EQ(points.size(), 10u);
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, 100);
}

TEST_F(LossCurveTest, ALargeFileIsReadAtEqualDistances) {
  constexpr int kSteps = 40'000;
  dir_.Write("steps.csv", Rows(kSteps));
  const auto points = Read("steps.csv", 50);
  ASSERT_EQ(points.size(), 50u);
  EXPECT_LE(points.front().step, 1);
  EXPECT_EQ(points.back().step, kSteps);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_GT(points[i].step, points[i - 1].step);
    EXPECT_LT(points[i].step - points[i - 1].step, 2 * kSteps / 50);
    EXPECT_NEAR(points[i].loss, 10.0 / static_cast<double>(points[i].step), 1e-3);
  }
}

TEST_F(LossCurveTest, WhatIsNoLogHasNoPoints) {
  dir_.Write("other", std::string(1 << 20, 'x'));
  EXPECT_THAT(Read("other", 10), ElementsAre());
}

}  // namespace
}  // namespace switchyard::server
