// When a worker reports its experts.
#include "workers/session/report_handler.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard::worker {
namespace {

class ReportHandlerTest : public testing::Test {
 protected:
  std::vector<v1::ExpertReport> sent;
  ReportHandler handler{[] { return placement::ExpertReport{.copied_bytes = 7}; },
                        [this](v1::ExpertReport report) { sent.push_back(std::move(report)); }};
  const absl::Time start = absl::UnixEpoch();
};

TEST_F(ReportHandlerTest, TheFirstStepIsReportedAtOnceThenNowAndThen) {
  handler.Enter(3);
  handler.Poll(start);
  EXPECT_TRUE(sent.empty()) << "nothing has happened";
  EXPECT_EQ(handler.patience(start), absl::InfiniteDuration());
  handler.StepDone();
  EXPECT_EQ(handler.patience(start), absl::ZeroDuration());
  handler.Poll(start);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].group_epoch(), 3);
  EXPECT_EQ(sent[0].copied_bytes(), 7);
  EXPECT_EQ(handler.patience(start), absl::InfiniteDuration()) << "all is reported";
  const absl::Time soon = start + kReportEvery / 4;
  handler.StepDone();
  handler.Poll(soon);
  EXPECT_EQ(sent.size(), 1u);
  EXPECT_EQ(handler.patience(soon), kReportEvery * 3 / 4);
  handler.Poll(start + kReportEvery);
  EXPECT_EQ(sent.size(), 2u) << "of the last step, though none came since";
}

TEST_F(ReportHandlerTest, AGroupThatIsOverIsNotReported) {
  handler.StepDone();
  handler.Poll(start);
  EXPECT_TRUE(sent.empty()) << "in no group yet";
  handler.Enter(3);
  handler.StepDone();
  handler.Poll(start);
  handler.StepDone();
  handler.Enter(4);
  handler.Poll(start + kReportEvery);
  EXPECT_EQ(sent.size(), 1u);
  handler.StepDone();
  handler.Poll(start);
  ASSERT_EQ(sent.size(), 2u) << "a new group's first step";
  EXPECT_EQ(sent[1].group_epoch(), 4);
}

}  // namespace
}  // namespace switchyard::worker
