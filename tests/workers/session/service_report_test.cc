// When a worker tells of its experts.
#include "workers/session/service_report.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

class ReportDutyTest : public testing::Test {
 protected:
  std::vector<v1::ExpertReport> sent;
  ReportDuty duty{[] { return ExpertReport{.copied_bytes = 7}; },
                  [this](v1::ExpertReport report) { sent.push_back(std::move(report)); }};
  const absl::Time start = absl::UnixEpoch();
};

TEST_F(ReportDutyTest, TheFirstStepIsToldAtOnceThenNowAndThen) {
  duty.Enter(3);
  duty.Poll(start);
  EXPECT_TRUE(sent.empty()) << "nothing has happened";
  EXPECT_EQ(duty.patience(start), absl::InfiniteDuration());
  duty.StepDone();
  EXPECT_EQ(duty.patience(start), absl::ZeroDuration());
  duty.Poll(start);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].group_epoch(), 3);
  EXPECT_EQ(sent[0].copied_bytes(), 7);
  EXPECT_EQ(duty.patience(start), absl::InfiniteDuration()) << "all is told";
  const absl::Time soon = start + kReportEvery / 4;
  duty.StepDone();
  duty.Poll(soon);
  EXPECT_EQ(sent.size(), 1u);
  EXPECT_EQ(duty.patience(soon), kReportEvery * 3 / 4);
  duty.Poll(start + kReportEvery);
  EXPECT_EQ(sent.size(), 2u) << "of the last step, though none came since";
}

TEST_F(ReportDutyTest, AGroupThatIsOverIsNotTold) {
  duty.StepDone();
  duty.Poll(start);
  EXPECT_TRUE(sent.empty()) << "in no group yet";
  duty.Enter(3);
  duty.StepDone();
  duty.Poll(start);
  duty.StepDone();
  duty.Enter(4);
  duty.Poll(start + kReportEvery);
  EXPECT_EQ(sent.size(), 1u);
  duty.StepDone();
  duty.Poll(start);
  ASSERT_EQ(sent.size(), 2u) << "a new group's first step";
  EXPECT_EQ(sent[1].group_epoch(), 4);
}

}  // namespace
}  // namespace switchyard
