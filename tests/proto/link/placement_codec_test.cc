// Bad messages about expert placement; round_trip_test.cc has the good ones.
#include "proto/link/placement_codec.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link/fleet_codec.h"

namespace switchyard::link {
namespace {

using testing::HasSubstr;

TEST(PlacementCodec, SettingsThatContradictEachOtherAreRefused) {
  EXPECT_EQ(FromProto(v1::EngineOptions())->placement, placement::PlacementSettings());
  fleet::EngineSettings settings;
  settings.placement = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 2};
  v1::EngineOptions options = ToProto(settings);
  options.mutable_placement()->set_mode("best");
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(options).status()));
  options.mutable_placement()->set_mode("static");  // with spare slots, which it cannot have
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(options).status()));
}

TEST(PlacementCodec, ARankOutsideTheGroupIsRefused) {
  fleet::RankAssignment assignment;
  assignment.rank = 1;
  assignment.world = 2;
  const v1::JoinGroup message = ToProto(assignment);
  ASSERT_TRUE(FromProto(message).ok());
  for (const int32_t rank : {-1, 2}) {
    v1::JoinGroup wrong = message;
    wrong.set_rank(rank);
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status())) << rank;
  }
}

placement::ExpertReport Report() {
  placement::ExpertReport report;
  report.predictor_stats = {{.layer = 0, .batches = 1, .accuracy = 0.5, .distance = 0.25, .used = true},
                            {.layer = 1,
                             .phase = popularity::Phase::kDecode,
                             .ahead = 2,
                             .estimator = popularity::LivePredictor::kProbe,
                             .batches = int64_t{1} << 33,
                             .accuracy = 1,
                             .distance = 0.125}};
  report.placements = {{.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}}},
                       {.num_experts = 4, .slots = {{0, placement::kEmptySlot}, {1, 2, 3}}}};
  report.origins.assign(2, std::vector<placement::SlotOrigin>(5, placement::SlotOrigin::kStart));
  report.origins[0][4] = placement::SlotOrigin::kGate;
  report.origins[1][2] = placement::SlotOrigin::kEstimate;
  report.copied_bytes = int64_t{1} << 40;
  report.copy_seconds = 12.5;
  return report;
}

TEST(ExpertReportCodec, WhatCannotBeIsRefused) {
  EXPECT_TRUE(FromProto(ToProto(placement::ExpertReport(), 1), 2, 4).ok()) << "an empty report";
  const auto refusal = [](auto change) {
    v1::ExpertReport message = ToProto(Report(), 9);
    change(&message);
    return std::string(FromProto(message, 2, 4).status().message());
  };
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_predictor_stats()->add_used(true); }),
              HasSubstr("columns of 2 and 3"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_predictor_stats()->set_phases(0, 2); }),
              HasSubstr("phase 2"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_predictor_stats()->set_estimators(0, -1); }),
              HasSubstr("estimator -1"));
  EXPECT_THAT(refusal([](v1::ExpertReport* m) { m->mutable_predictor_stats()->set_layers(0, 2); }),
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

TEST(ExpertReportCodec, CopiesInAnImpossibleTimeAreLeftOut) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  placement::ExpertReport rest = Report();
  rest.copied_bytes = 0;
  rest.copy_seconds = 0;
  for (const double seconds : {-3600.0, 1e9, kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    v1::ExpertReport message = ToProto(Report(), 9);
    message.set_copy_seconds(seconds);
    const absl::StatusOr<placement::ExpertReport> report = FromProto(message, 2, 4);
    ASSERT_TRUE(report.ok()) << seconds << ": " << report.status();
    EXPECT_TRUE(*report == rest) << seconds;
  }
}

}  // namespace
}  // namespace switchyard::link
