// When a worker tells of its experts, and that what it tells arrives.
#include "workers/session/service_report.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/report_convert.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

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

ExpertReport Report() {
  ExpertReport report;
  report.standings = {{.layer = 0, .batches = 1, .accuracy = 0.5, .distance = 0.25, .used = true},
                      {.layer = 1,
                       .phase = Phase::kDecode,
                       .ahead = 2,
                       .estimator = LiveEstimator::kBlend,
                       .batches = int64_t{1} << 33,
                       .accuracy = 1,
                       .distance = 0.125,
                       .state = EstimatorState::kOff,
                       .off_distance = 0.75,
                       .marginal_distance = 0.5}};
  report.placements = {{.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}}},
                       {.num_experts = 4, .slots = {{0, kEmptySlot}, {1, 2, 3}}}};
  report.origins.assign(2, std::vector<SlotOrigin>(5, SlotOrigin::kStart));
  report.origins[0][4] = SlotOrigin::kGate;
  report.origins[1][2] = SlotOrigin::kEstimate;
  report.copied_bytes = int64_t{1} << 40;
  report.copy_seconds = 12.5;
  return report;
}

TEST(ExpertReportLink, ArrivesAsItWasSent) {
  v1::ExpertReport message;
  ASSERT_TRUE(message.ParseFromString(ToProto(Report(), 9).SerializeAsString()));
  EXPECT_EQ(message.group_epoch(), 9);
  const absl::StatusOr<ExpertReport> report = FromProto(message, 2, 4);
  ASSERT_TRUE(report.ok()) << report.status();
  const ExpertReport sent = Report();
  EXPECT_EQ(report->placements, sent.placements);
  EXPECT_EQ(report->origins, sent.origins);
  EXPECT_EQ(report->copied_bytes, sent.copied_bytes);
  EXPECT_EQ(report->copy_seconds, sent.copy_seconds);
  ASSERT_EQ(report->standings.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const EstimatorStanding &got = report->standings[i], &was = sent.standings[i];
    EXPECT_EQ(got.layer, was.layer);
    EXPECT_EQ(got.phase, was.phase);
    EXPECT_EQ(got.ahead, was.ahead);
    EXPECT_EQ(got.estimator, was.estimator);
    EXPECT_EQ(got.batches, was.batches);
    EXPECT_EQ(got.accuracy, was.accuracy);
    EXPECT_EQ(got.distance, was.distance);
    EXPECT_EQ(got.state, was.state);
    EXPECT_EQ(got.used, was.used);
    EXPECT_EQ(got.off_distance, was.off_distance);
    EXPECT_EQ(got.marginal_distance, was.marginal_distance);
  }
  EXPECT_TRUE(FromProto(ToProto({}, 1), 2, 4).ok()) << "nothing to tell";
}

TEST(ExpertReportLink, WhatCannotBeIsRefused) {
  const auto refusal = [](auto change) {
    v1::ExpertReport message = ToProto(Report(), 9);
    change(&message);
    return std::string(FromProto(message, 2, 4).status().message());
  };
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_standings()->add_used(true); }),
              HasSubstr("columns of 2 and 3"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_standings()->set_phases(0, 2); }), HasSubstr("phase 2"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_standings()->set_estimators(0, -1); }),
              HasSubstr("estimator -1"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_standings()->set_states(0, 3); }), HasSubstr("state 3"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_standings()->set_layers(0, 2); }),
              HasSubstr("layer 2 of 2"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_layers(0)->set_sizes(1, 4); }),
              HasSubstr("a device of 4 slots, where 3 are left"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_layers(0)->set_sizes(1, -1); }), HasSubstr("of -1 slots"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_layers(0)->set_origins(0, 3); }),
              HasSubstr("slot origin 3 is none"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_layers(0)->add_origins(0); }),
              HasSubstr("6 origins of 5 slots"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->set_num_experts(5); }), HasSubstr("has 5 experts"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_layers()->RemoveLast(); }), HasSubstr("1 layers"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->set_copied_bytes(-1); }), HasSubstr("-1 bytes"));
}

}  // namespace
}  // namespace switchyard
