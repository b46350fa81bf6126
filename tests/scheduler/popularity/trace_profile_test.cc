#include "scheduler/popularity/trace/trace_profile.h"

#include <string>

#include "gtest/gtest.h"
#include "scheduler/popularity/predictors/live_estimates.h"

namespace switchyard::popularity {
namespace {

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};

TraceSequence Sequence(int32_t num_prompt, std::vector<int16_t> experts) {
  TraceSequence sequence;
  sequence.num_prompt = num_prompt;
  for (size_t t = 0; t < experts.size() / 2; ++t) sequence.token_ids.push_back(static_cast<int32_t>(t));
  sequence.experts = std::move(experts);
  return sequence;
}

RoutingTrace Trace() {
  return {.model = "weights",
          .shape = kShape,
          .channels = {},
          .sequences = {Sequence(2, {0, 1, 2, 3, 0, 2}), Sequence(1, {0, 1})}};
}

TEST(TraceProfileTest, PromptsAndOutputsAreCountedApart) {
  const absl::StatusOr<ProfileBundle> bundle = CountTrace(Trace());
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  ASSERT_EQ(bundle->profiles.size(), 4u);
  const PathProfile& paths = bundle->profiles[0];
  EXPECT_EQ(paths.identity().phase, Phase::kPrefill);
  EXPECT_EQ(paths.identity().context, ContextKind::kPath);
  EXPECT_EQ(paths.num_tokens(1), 3);
  EXPECT_EQ(std::vector<int64_t>(paths.MarginalCounts(1).begin(), paths.MarginalCounts(1).end()),
            (std::vector<int64_t>{0, 2, 0, 1}));
  EXPECT_EQ(bundle->profiles[1].identity().context, ContextKind::kToken);
  EXPECT_EQ(bundle->profiles[2].identity().phase, Phase::kDecode);
  EXPECT_EQ(bundle->profiles[2].MarginalCounts(1)[2], 1);
}

TEST(TraceProfileTest, LiveEstimatesTakeIt) {
  RoutingTrace trace = Trace();
  trace.channels = {{.name = "probe", .num_predicted = 4}};
  for (TraceSequence& sequence : trace.sequences) {
    sequence.predictions.emplace_back();
    for (size_t i = 0; i < sequence.experts.size(); ++i)
      for (const int16_t expert : {0, 1, 2, 3}) sequence.predictions[0].push_back(expert);
  }
  const absl::StatusOr<ProfileBundle> bundle = CountTrace(trace);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->profiles.size(), 6u);
  for (const PathProfile& profile : bundle->profiles) {
    LiveEstimates live({.model = "weights", .shape = kShape, .phase = profile.identity().phase});
    EXPECT_TRUE(live.Restore(profile).ok()) << live.Restore(profile);
  }
}

TEST(TraceProfileTest, AChannelThatNamesTooFewIsLeftOut) {
  RoutingTrace trace = Trace();
  trace.channels = {{.name = "probe", .num_predicted = 1}};
  for (TraceSequence& sequence : trace.sequences) sequence.predictions.emplace_back(sequence.experts.size(), 0);
  EXPECT_EQ(CountTrace(trace)->profiles.size(), 4u);
}

TEST(TraceProfileTest, AShapeThatNoProfileHasIsNamed) {
  RoutingTrace trace = Trace();
  trace.shape.num_experts = 5000;
  EXPECT_NE(std::string(CountTrace(trace).status().message()).find("num_experts is 5000"), std::string::npos);
}

}  // namespace
}  // namespace switchyard::popularity
