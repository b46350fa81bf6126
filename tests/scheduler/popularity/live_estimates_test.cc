// Live estimates of a phase against naive ones, and what is asked in which pass.
#include "scheduler/popularity/predictors/live_estimates.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/simulator/trace_batches.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/lab/routing/routing_chain.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using E = LivePredictor;
constexpr RoutingShape kShape{.num_layers = 4, .num_experts = 16, .top_k = 1};

LiveOptions Options() { return {.model = "chain", .shape = kShape, .num_predicted = 2, .full_every = 4}; }

RoutingTrace Traffic(uint64_t permutations, int64_t sequences) {
  absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned({.shape = kShape, .seed = permutations});
  EXPECT_TRUE(chain.ok()) << chain.status();
  return chain->Draw({.num_sequences = sequences, .sequence_tokens = 64, .domain_run = 1});
}

// A predictor that is right in `right` of 4 tokens, else names the expert after it.
std::vector<int16_t> Predict(const RoutingView& batch, int layer, int right) {
  std::vector<int16_t> predicted;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    const int16_t chosen = batch.Experts(t, layer)[0];
    const auto next = static_cast<int16_t>((chosen + 1) % kShape.num_experts);
    predicted.push_back(t % 4 < right ? chosen : next);
    predicted.push_back(t % 4 < right ? next : chosen);
  }
  return predicted;
}

// One pass as a model runs it.  probe, gate_ahead: right in so many of 4 tokens; < 0: silent.
void Pass(const RoutingView& batch, int probe, int gate_ahead, LiveEstimates* live,
          std::vector<Popularity>* estimates = nullptr) {
  live->BeginPass();
  for (int layer = 0; layer < kShape.num_layers; ++layer) {
    if (probe >= 0) live->SetPredictions(Predictor::kProbe, layer, 1, Predict(batch, layer, probe));
    if (gate_ahead >= 0) live->SetPredictions(Predictor::kGateAhead, layer, 1, Predict(batch, layer, gate_ahead));
    Popularity estimate(kShape.num_experts);
    if (!live->Estimate(batch, layer, 1, absl::MakeSpan(estimate))) estimate.clear();
    if (estimates != nullptr) estimates->push_back(estimate);
    live->Observe(batch, layer);
  }
}

TEST(LiveEstimatesTest, NothingCountedIsNoEstimateAndTheFirstAnswerIsMarginal) {
  LiveEstimates live(Options());
  const SmallBatch batch(kShape, {{3, 4, 5, 6}, {3, 4, 5, 7}});
  std::vector<Popularity> first, second;
  Pass(batch.View(), -1, -1, &live, &first);
  for (const Popularity& estimate : first) EXPECT_TRUE(estimate.empty());
  Pass(batch.View(), -1, -1, &live, &second);
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(second[0][3], 2 * kRow);
  EXPECT_EQ(second[3][6], kRow);
  EXPECT_EQ(second[3][7], kRow);
}

// A probe that is always right is not listened to: Eq. (1) is what a paper's mode decides by.
TEST(LiveEstimatesTest, ThePapersEstimateIsTheMaskedPathsWhateverIsBetter) {
  const RoutingTrace trace = Traffic(1, 60);
  LiveOptions options = Options();
  options.counted_rows = 64;
  options.paper_estimate = true;
  LiveEstimates live(options);
  options.paper_estimate = false;
  LiveEstimates best(options);
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 64);
  int num_masked = 0;
  for (int64_t b = 0; b < batches.num_batches(); ++b) {
    batches.Load(b);
    const RoutingView view = batches.View();
    // What Observe counts changes the answer of the next batch only.
    std::vector<Popularity> wanted, unmasked, reported;
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      const ProfilePredictor masked(&live.profiles()[0],
                                    {.max_length = layer == 0 ? 0 : 3, .mask_to_top_k = layer > 0});
      const ProfilePredictor whole(&live.profiles()[0], {.max_length = layer == 0 ? 0 : 3});
      for (const auto& [estimator, to] : {std::pair(&masked, &wanted), std::pair(&whole, &unmasked)}) {
        to->push_back(estimator->Estimate(view, layer));
      }
    }
    Pass(view, 4, 4, &live, &reported);
    Pass(view, 4, 4, &best);
    EXPECT_EQ(reported, wanted);
    num_masked += wanted != unmasked;
  }
  EXPECT_GT(num_masked, 10);
  EXPECT_EQ(best.Best(2, 1), E::kGateAhead);
}

TEST(LiveEstimatesTest, ARankWithoutRowsChangesNothing) {
  LiveEstimates live(Options());
  const SmallBatch none(kShape, {});
  std::vector<Popularity> estimates;
  Pass(none.View(), -1, -1, &live, &estimates);
  for (const Popularity& estimate : estimates) EXPECT_TRUE(estimate.empty());
  EXPECT_EQ(live.profiles()[0].num_tokens(0), 0);
}

TEST(LiveEstimatesTest, TheBestOneIsWhatItSaysByNaivePredictors) {
  const RoutingTrace trace = Traffic(1, 120);
  LiveEstimates live(Options());
  // The same, by hand: a probe that is right in 3 of 4 tokens, as given.
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 64);
  for (int64_t b = 0; b < batches.num_batches(); ++b) {
    batches.Load(b);
    std::vector<Popularity> estimates;
    Pass(batches.View(), 3, -1, &live, &estimates);
    if (b < 64) continue;
    for (int layer = 1; layer < kShape.num_layers; ++layer) {
      const std::vector<int64_t> actual = CountsOf(batches.View(), layer);
      EXPECT_LT(TotalVariation(estimates[static_cast<size_t>(layer)], actual), 0.35) << b << " " << layer;
      EXPECT_EQ(TotalOf(estimates[static_cast<size_t>(layer)]), 64 * kRow);
    }
  }
  for (int layer = 1; layer < kShape.num_layers; ++layer) {
    const double best = live.score(live.Best(layer, 1), layer, 1).distance();
    EXPECT_LT(best, live.score(E::kMarginal, layer, 1).distance() / 2) << NameOf(live.Best(layer, 1));
    EXPECT_LE(best, 17.0 / 16 * live.score(E::kProbe, layer, 1).distance());
    EXPECT_LT(live.score(E::kPath, layer, 1).distance(), live.score(E::kMarginal, layer, 1).distance());
  }
}

// It names the wrong expert of every token, but always the same one, which counting finds out.
TEST(LiveEstimatesTest, AMisleadingProbeIsCalibrated) {
  const RoutingTrace trace = Traffic(1, 60);
  LiveEstimates live(Options());
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 64);
  for (int64_t b = 0; b < batches.num_batches(); ++b) {
    batches.Load(b);
    Pass(batches.View(), 0, -1, &live);
  }
  EXPECT_EQ(live.Best(2, 1), E::kProbe);
  EXPECT_LT(live.score(E::kProbe, 2, 1).distance(), live.score(E::kMarginal, 2, 1).distance() / 4);
}

TEST(LiveEstimatesTest, BetweenFullPassesOnlyTheBestIsAsked) {
  const RoutingTrace trace = Traffic(1, 200);
  LiveOptions options = Options();
  options.first_full_passes = 32;
  options.full_every = 8;
  LiveEstimates live(options);
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 64);
  int wanted_probe = 0, wanted_gate = 0;
  for (int64_t b = 0; b < 96; ++b) {
    batches.Load(b);
    Pass(batches.View(), 4, 3, &live);
    if (b < 32) continue;
    wanted_probe += live.Wants(Predictor::kProbe, 2, 1);
    wanted_gate += live.Wants(Predictor::kGateAhead, 2, 1);
  }
  EXPECT_EQ(live.Best(2, 1), E::kProbe);
  EXPECT_EQ(wanted_probe, 64);
  EXPECT_EQ(wanted_gate, 8);
  EXPECT_EQ(live.score(E::kGateAhead, 2, 1).num_batches(), 40);
}

TEST(LiveEstimatesTest, APassThatEndedEarlyLeavesNothingToTheNext) {
  LiveEstimates live(Options());
  const SmallBatch large(kShape, {{3, 4, 5, 6}, {3, 4, 5, 7}, {1, 1, 1, 1}}), small(kShape, {{3, 4, 5, 6}});
  Pass(large.View(), 4, -1, &live);  // so that there is something to say
  const int64_t scored = live.score(E::kProbe, 1, 1).num_batches();
  ASSERT_GT(scored, 0);
  live.BeginPass();
  live.SetPredictions(Predictor::kProbe, 1, 1, Predict(large.View(), 1, 4));
  Popularity estimate(kShape.num_experts);
  ASSERT_TRUE(live.Estimate(large.View(), 1, 1, absl::MakeSpan(estimate))) << "nothing is left behind";
  Pass(small.View(), -1, -1, &live);
  EXPECT_EQ(live.score(E::kProbe, 1, 1).num_batches(), scored);
}

TEST(LiveEstimatesTest, LongPassesAreCountedByWindows) {
  LiveOptions options = Options();
  options.counted_rows = 2;
  LiveEstimates live(options);
  const SmallBatch batch(kShape, {{3, 4, 5, 6}, {3, 4, 5, 7}, {1, 1, 1, 1}, {2, 2, 2, 2}, {9, 9, 9, 9}});
  for (int pass = 0; pass < 12; ++pass) Pass(batch.View(), -1, -1, &live);
  EXPECT_EQ(live.profiles()[0].num_tokens(0), 24);
  for (const int expert : {1, 2, 3, 9}) EXPECT_GT(live.profiles()[0].MarginalCounts(0)[expert], 0) << expert;
}

TEST(LiveEstimatesTest, WhatWasCountedElsewhereIsTakenAndAnotherModelsRefused) {
  const SmallBatch batch(kShape, {{3, 4, 5, 6}, {3, 4, 5, 7}});
  LiveEstimates other(Options()), live(Options());
  Pass(batch.View(), 4, -1, &other);
  for (const PathProfile& profile : other.profiles()) EXPECT_TRUE(live.Restore(profile).ok());
  std::vector<Popularity> estimates;
  Pass(batch.View(), -1, -1, &live, &estimates);
  ASSERT_FALSE(estimates[0].empty());
  EXPECT_EQ(estimates[0][3], 2 * kRow);
  LiveOptions another = Options();
  another.model = "another";
  LiveEstimates foreign(another);
  EXPECT_NE(foreign.Restore(other.profiles()[0]).message().find("model is chain"), std::string::npos);
  another = Options();
  another.phase = Phase::kDecode;
  LiveEstimates decode(another);
  EXPECT_NE(decode.Restore(other.profiles()[0]).message().find("no estimator reads prefill path"), std::string::npos);
}

}  // namespace
}  // namespace switchyard::popularity
