// The origins of experts in spare slots, and the bounds of a report of them.
#include "scheduler/placement/per_step/expert_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using testing::HasSubstr;

TEST(SlotOriginsTest, TheLastChangeSaysWho) {
  SlotOrigins origins(2, 2, 4);
  EXPECT_EQ(origins.Of(1, 1, 3), SlotOrigin::kStart);
  origins.Changed(1, {{.device = 1, .slot = 2, .expert = 3}, {.device = 0, .slot = 2, .expert = kEmptySlot}},
                  SlotOrigin::kGate);
  EXPECT_EQ(origins.Of(1, 1, 3), SlotOrigin::kGate);
  EXPECT_EQ(origins.Of(0, 1, 3), SlotOrigin::kStart) << "another layer";
  EXPECT_EQ(origins.Of(1, 0, 3), SlotOrigin::kStart) << "another device";
  EXPECT_EQ(origins.Of(1, 1, 2), SlotOrigin::kStart) << "another expert";
  origins.Changed(1, {{.device = 1, .slot = 2, .expert = 3}}, SlotOrigin::kEstimate);
  EXPECT_EQ(origins.Of(1, 1, 3), SlotOrigin::kEstimate);
}

constexpr PlacementBounds kBounds{.layers = 1, .experts = 4, .devices = 2};

ExpertReport Report() {
  ExpertReport report;
  report.placements = {{.num_experts = 4, .slots = {{0, 1, 2}, {2, 3}}}};
  report.origins = {std::vector<SlotOrigin>(5, SlotOrigin::kStart)};
  return report;
}

TEST(ExpertReportTest, WhatFitsTheGroupIsTaken) {
  EXPECT_TRUE(CheckExpertReport({}, kBounds).ok());
  EXPECT_TRUE(CheckExpertReport(Report(), kBounds).ok());
}

TEST(ExpertReportTest, WhatDoesNotIsNamed) {
  const auto refusal = [](auto change) {
    ExpertReport report = Report();
    change(&report);
    return std::string(CheckExpertReport(report, kBounds).message());
  };
  EXPECT_THAT(refusal([](ExpertReport* r) { r->predictor_stats = {{.layer = 1, .batches = 1}}; }),
              HasSubstr("layer 1 of 1"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->origins[0].pop_back(); }),
              HasSubstr("MoE layer 0: has 4 origins of 5 slots"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->origins.clear(); }), HasSubstr("origins of 0, not of 1"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->placements.clear(); }), HasSubstr("placements of 0 layers"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->placements[0].num_experts = 5; }),
              HasSubstr("has 5 experts on 2 devices, not 4 on 2"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->placements[0].slots.push_back({}); }), HasSubstr("on 3 devices"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->placements[0].slots[0][0] = 4; }), HasSubstr("MoE layer 0: "));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->copied_bytes = -1; }), HasSubstr("-1 bytes copied"));
  EXPECT_THAT(refusal([](ExpertReport* r) { r->copy_seconds = -0.5; }), HasSubstr("in -0.5 s"));
}

}  // namespace
}  // namespace switchyard::placement
