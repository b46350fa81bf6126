#include "scheduler/simulator/trace_replay.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/lab/routing/routing_chain.h"

namespace switchyard::simulator {
namespace {

using testing::HasSubstr;

popularity::RoutingTrace Traffic() {
  const absl::StatusOr<RoutingChain> chain =
      RoutingChain::Tuned({.shape = {.num_layers = 4, .num_experts = 16, .top_k = 1}});
  EXPECT_TRUE(chain.ok()) << chain.status();
  return chain->Draw({.num_sequences = 160, .sequence_tokens = 64});
}

const ReplayReport::Mode& Of(const ReplayReport& report, placement::PlacementMode mode) {
  return *std::find_if(report.modes.begin(), report.modes.end(), [&](const auto& one) { return one.mode == mode; });
}

TEST(TraceReplayTest, ModesThatSeeMoreAreMoreEven) {
  const absl::StatusOr<ReplayReport> report = ReplayTrace(Traffic(), {.batch_tokens = 256, .num_devices = 8});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_batches, 160 * 64 / 256);
  const double even = Of(*report, placement::PlacementMode::kStatic).median;
  EXPECT_GT(even, 1.1);
  EXPECT_LT(Of(*report, placement::PlacementMode::kStaticSpare).median, even);
  EXPECT_LT(Of(*report, placement::PlacementMode::kAgreed).median, even);
  EXPECT_EQ(Of(*report, placement::PlacementMode::kStatic).copies_per_layer, 0);
  EXPECT_GT(Of(*report, placement::PlacementMode::kAgreed).copies_per_layer, 0);
  for (const ReplayReport::Mode& mode : report->modes) {
    EXPECT_GE(mode.median, 1) << NameOf(mode.mode);
    EXPECT_LE(mode.median, mode.p95);
  }
}

TEST(TraceReplayTest, PredictorsAreRankedByHowFarOffTheyWere) {
  popularity::RoutingTrace trace = Traffic();
  // A channel that knows everything.
  trace.channels = {{.name = "probe", .num_predicted = 2}};
  for (popularity::TraceSequence& sequence : trace.sequences) {
    sequence.predictions.emplace_back();
    for (const int16_t expert : sequence.experts) {
      sequence.predictions[0].push_back(expert);
      sequence.predictions[0].push_back(static_cast<int16_t>((expert + 1) % 16));
    }
  }
  const absl::StatusOr<ReplayReport> report =
      ReplayTrace(trace, {.phase = popularity::Phase::kPrefill, .batch_tokens = 128});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->estimators[0].name, "probe");
  EXPECT_EQ(report->estimators[0].distance, 0);
  EXPECT_EQ(report->estimators[0].accuracy, 1);
  const auto named = [&](const std::string& name) {
    return std::find_if(report->estimators.begin(), report->estimators.end(),
                        [&](const auto& one) { return one.name == name; });
  };
  ASSERT_NE(named("path"), report->estimators.end());
  EXPECT_LT(named("path")->distance, named("marginal")->distance);
  EXPECT_EQ(named("gate_ahead"), report->estimators.end());
}

TEST(TraceReplayTest, OptionsThatCannotBeAreNamed) {
  const popularity::RoutingTrace trace = Traffic();
  const auto error = [&](const ReplayOptions& options) {
    return std::string(ReplayTrace(trace, options).status().message());
  };
  EXPECT_THAT(error({.num_devices = 17}), HasSubstr("workers is 17, wants 1 to 16, the experts"));
  EXPECT_THAT(error({.num_devices = 0}), HasSubstr("workers is 0"));
  EXPECT_THAT(error({.batch_tokens = 0}), HasSubstr("batch_tokens is 0"));
  EXPECT_THAT(error({.batch_tokens = 6000}), HasSubstr("number of tokens is 10240, wants two batches of 6000"));
  EXPECT_THAT(error({.spare_slots = 0}), HasSubstr("spare_slots is 0"));
}

}  // namespace
}  // namespace switchyard::simulator
