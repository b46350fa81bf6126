// How estimators stand: what live estimates say of themselves, what another process may say, and the group's means.
#include "scheduler/popularity/predictors/predictor_stats.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::HasSubstr;
using E = LivePredictor;

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 8, .top_k = 1};

// The same two tokens again and again, which marginal knows exactly; the probe gets `said` for layer 1.
LiveEstimates AfterPasses(int passes, std::vector<int16_t> said) {
  LiveEstimates live({.model = "m", .shape = kShape, .phase = Phase::kDecode, .num_predicted = 1});
  const SmallBatch batch(kShape, {{3, 4}, {5, 6}});
  for (int pass = 0; pass < passes; ++pass) {
    live.BeginPass();
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      if (layer == 1) live.SetPredictions(Predictor::kProbe, layer, 1, said);
      Popularity estimate(kShape.num_experts);
      live.Estimate(batch.View(), layer, 1, absl::MakeSpan(estimate));
      live.Observe(batch.View(), layer);
    }
  }
  return live;
}

const PredictorStats* Find(const std::vector<PredictorStats>& stats, E estimator, int layer, int ahead) {
  for (const PredictorStats& at : stats)
    if (at.estimator == estimator && at.layer == layer && at.ahead == ahead) return &at;
  return nullptr;
}

TEST(PredictorStatsTest, ReportsWhatWasScoredAndWhatIsUsed) {
  const LiveEstimates live = AfterPasses(24, {0, 1});
  const std::vector<PredictorStats> stats = PredictorStatsOf(live, Phase::kDecode);
  EXPECT_TRUE(CheckPredictorStats(stats, kShape.num_layers).ok());
  const PredictorStats* marginal = Find(stats, E::kMarginal, 1, 1);
  ASSERT_NE(marginal, nullptr);
  EXPECT_EQ(marginal->phase, Phase::kDecode);
  EXPECT_EQ(marginal->batches, 23);  // the first pass had counted nothing
  EXPECT_EQ(marginal->accuracy, 1);
  EXPECT_EQ(marginal->distance, 0);
  EXPECT_TRUE(marginal->used);
  const PredictorStats* probe = Find(stats, E::kProbe, 1, 1);
  ASSERT_NE(probe, nullptr);
  EXPECT_FALSE(probe->used);
  EXPECT_GT(probe->distance, 0);
  // Nobody said anything of layer 0, or two layers ahead.
  EXPECT_EQ(Find(stats, E::kProbe, 0, 1), nullptr);
  EXPECT_EQ(Find(stats, E::kMarginal, 1, 2), nullptr);
  EXPECT_TRUE(PredictorStatsOf(AfterPasses(0, {}), Phase::kDecode).empty());
}

TEST(PredictorStatsTest, WhatCannotBeIsNamed) {
  const PredictorStats good = {.layer = 1, .batches = 1, .accuracy = 1, .distance = 1};
  EXPECT_TRUE(CheckPredictorStats({good}, 2).ok());
  EXPECT_THAT(CheckPredictorStats({good}, 1).message(), HasSubstr("layer 1 of 1"));
  const auto bad = [&](auto change) {
    PredictorStats stats = good;
    change(&stats);
    return !CheckPredictorStats({good, stats}, 2).ok();
  };
  EXPECT_TRUE(bad([](PredictorStats* s) { s->layer = -1; }));
  EXPECT_TRUE(bad([](PredictorStats* s) { s->ahead = 0; }));
  EXPECT_TRUE(bad([](PredictorStats* s) { s->ahead = kMaxAhead + 1; }));
  EXPECT_TRUE(bad([](PredictorStats* s) { s->batches = 0; }));
  EXPECT_TRUE(bad([](PredictorStats* s) { s->accuracy = 1.01; }));
  EXPECT_TRUE(bad([](PredictorStats* s) { s->distance = std::numeric_limits<double>::quiet_NaN(); }));
}

TEST(PredictorStatsTest, AGroupsMeansWeighBatches) {
  const PredictorStats path = {
      .layer = 1, .ahead = 2, .estimator = E::kPath, .batches = 1, .accuracy = 1, .distance = 0.5, .used = true};
  PredictorStats other = path;
  other.batches = 3;
  other.accuracy = 0;
  other.distance = 0.1;
  other.used = false;
  PredictorStats elsewhere = path;
  elsewhere.layer = 0;
  PredictorStats marginal = path;
  marginal.estimator = E::kMarginal;
  const std::vector<PredictorStats> first = {path, elsewhere}, second = {marginal, other};
  const std::vector<GroupStats> group = GroupStatsOf({&first, &second}, 1);
  ASSERT_EQ(group.size(), 2u);
  EXPECT_EQ(group[0].mean.estimator, E::kMarginal);
  EXPECT_EQ(group[1].mean.estimator, E::kPath);
  EXPECT_EQ(group[1].mean.ahead, 2);
  EXPECT_EQ(group[1].mean.batches, 4);
  EXPECT_DOUBLE_EQ(group[1].mean.accuracy, 0.25);
  EXPECT_DOUBLE_EQ(group[1].mean.distance, 0.2);
  EXPECT_EQ(group[1].ranks_using, 1);
  EXPECT_TRUE(GroupStatsOf({}, 1).empty());
}

}  // namespace
}  // namespace switchyard::popularity
