#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/predictors/calibrated_predictor.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"
#include "tests/lab/routing/blend_of_predictors.h"
#include "tests/lab/routing/corrected_predictor.h"
#include "tests/lab/routing/last_batch_predictor.h"
#include "tests/lab/routing/token_predictions.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};
constexpr RoutingShape kTop2{.num_layers = 2, .num_experts = 4, .top_k = 2};

// Empty if there is no estimate.
template <class Estimator>
Popularity Ask(const Estimator& estimator, const RoutingView& batch, int layer) {
  Popularity popularity = estimator.Estimate(batch, layer);
  if (!popularity.empty()) {
    EXPECT_EQ(TotalOf(popularity), batch.num_tokens * batch.shape.top_k * kRow);
  }
  return popularity;
}

PathProfile ProfileOf(const SmallBatch& batch, ContextKind context = ContextKind::kPath) {
  PathProfile profile({.model = "m",
                       .shape = batch.shape,
                       .context = context,
                       .path_length = 1,
                       .num_choices = context == ContextKind::kPath ? 2 : 1},
                      {.max_bytes = 1 << 20, .halve_after_tokens = 0});
  for (int layer = 0; layer < batch.shape.num_layers; ++layer) profile.Observe(batch.View(), layer);
  return profile;
}

std::unique_ptr<LoadPredictor> Marginal(const PathProfile& profile) {
  return std::make_unique<LoadPredictorOf<ProfilePredictor>>(ProfilePredictor(&profile, {.max_length = 0}));
}

// After expert 0: 1 three times in four, 2 once.  After 3: always 0.
const std::vector<std::vector<int16_t>> kHistory = {{0, 1}, {0, 1}, {0, 1}, {0, 2}, {3, 0}, {3, 0}};

// Shares are rounded down to 2^-20; what that leaves goes by largest remainder.
TEST(ProfilePredictorTest, SumsTheDistributionsOfTheTokensPaths) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor path(&profile, {});
  const SmallBatch batch(kShape, {{0, -1}, {0, -1}, {3, -1}, {2, -1}});  // expert 2 was never seen: the marginal
  EXPECT_THAT(Ask(path, batch.View(), 1), ElementsAre(kRow + kRow / 3, 2 * kRow + 1, kRow / 2 + kRow / 6, 0));
  EXPECT_THAT(Ask(path, batch.View(), 0), ElementsAre());
  EXPECT_THAT(PredictTokens(path, profile, batch.View(), 1, 3), ElementsAre(1, 2, -1, 1, 2, -1, 0, -1, -1, 1, 0, 2));
}

TEST(ProfilePredictorTest, ThePapersRuleLeavesOutWhatIsNotAmongATokensTopK) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor paper(&profile, {.mask_to_top_k = true});
  const SmallBatch batch(kShape, {{0, -1}, {3, -1}, {3, -1}});
  // 3/4 and 1 + 1 of 11/4, scaled to 3 rows.
  EXPECT_THAT(Ask(paper, batch.View(), 1), ElementsAre(2287802, 857926, 0, 0));
}

TEST(ProfilePredictorTest, MarginalIsTheSameForAllAndKnowsLayerZero) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor marginal(&profile, {.max_length = 0});
  const SmallBatch batch(kShape, {{3, -1}, {3, -1}, {3, -1}});
  EXPECT_THAT(Ask(marginal, batch.View(), 0), ElementsAre(2 * kRow, 0, 0, kRow));
  EXPECT_THAT(Ask(marginal, batch.View(), 1), ElementsAre(kRow, kRow + kRow / 2 + 2, kRow / 2 - 2, 0));
  const PathProfile nothing = ProfileOf(SmallBatch(kShape, {}));
  EXPECT_THAT(Ask(ProfilePredictor(&nothing, {.max_length = 0}), batch.View(), 0), ElementsAre());
}

TEST(ProfilePredictorTest, APathSeenTooRarelyIsNotAsked) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, {{0, 1}, {3, 0}, {3, 0}}));
  const SmallBatch batch(kShape, {{0, -1}});
  for (const int min_tokens : {1, 2}) {
    const ProfilePredictor path(&profile, {.min_tokens = min_tokens});
    EXPECT_THAT(PredictTokens(path, profile, batch.View(), 1, 1), ElementsAre(min_tokens == 1 ? 1 : 0));
  }
}

TEST(ProfilePredictorTest, TokenIdsKnowLayerZeroAndNeedIds) {
  const PathProfile profile =
      ProfileOf(SmallBatch(kShape, {{0, 1}, {0, 1}, {3, 2}, {3, 2}}, {7, 7, 9, 9}), ContextKind::kToken);
  const ProfilePredictor token(&profile, {.max_length = 1});
  const SmallBatch batch(kShape, {{-1, -1}, {-1, -1}}, {9, 7});
  EXPECT_THAT(PredictTokens(token, profile, batch.View(), 0, 1), ElementsAre(3, 0));
  EXPECT_THAT(Ask(token, batch.View(), 1), ElementsAre(0, kRow, kRow, 0));
  RoutingView no_ids = batch.View();
  no_ids.token_ids = nullptr;
  EXPECT_THAT(Ask(token, no_ids, 1), ElementsAre());
}

TEST(LastBatchPredictorTest, ScalesWhatCameLast) {
  LastBatchPredictor last(kTop2);
  const SmallBatch first(kTop2, {{0, 1, 0, 1}, {0, 2, 0, 1}}), dropped(kTop2, {{-1, -1, -1, -1}});
  EXPECT_THAT(Ask(last, first.View(), 0), ElementsAre());
  last.Observe(first.View(), 0);
  last.Observe(dropped.View(), 0);  // of nothing there is nothing to say
  EXPECT_THAT(Ask(last, dropped.View(), 0), ElementsAre(kRow, kRow / 2, kRow / 2, 0));
  EXPECT_THAT(Ask(last, first.View(), 1), ElementsAre());
}

TEST(ObservedPredictorTest, CountsTheFirstKOfEachTokenForOneBatch) {
  ObservedPredictor probe(kTop2);
  const SmallBatch batch(kTop2, {{-1, -1, -1, -1}, {-1, -1, -1, -1}});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());
  probe.SetPredictions(1, 3, {0, 2, 1, 2, 3, -1});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre(kRow, 0, 2 * kRow, kRow));
  EXPECT_THAT(PredictTokens(probe, batch.View(), 1, 2), ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(PredictTokens(probe, batch.View(), 1, 4), ElementsAre(0, 2, 1, -1, 2, 3, -1, -1));
  EXPECT_THAT(Ask(probe, batch.View(), 0), ElementsAre());
  probe.Clear(1);
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());  // it was said of another batch
  probe.SetPredictions(1, 2, {-1, -1, -1, -1});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());
}

TEST(CalibratedPredictorTest, CountsWhatSuchPredictionsTurnedOutToMean) {
  PathProfile profile({.model = "m",
                       .shape = kTop2,
                       .context = ContextKind::kPredicted,
                       .channel = "probe",
                       .path_length = 2,
                       .num_choices = 1},
                      {.max_bytes = 1 << 20, .halve_after_tokens = 0});
  // Where 0 then 1 was predicted, 0 came always, then 1 or 2; where 0 then 2, always 0 and 3.
  const SmallBatch seen(kTop2, {{0, 0, 0, 1}, {0, 0, 2, 0}, {0, 0, 0, 3}, {0, 0, 3, 0}, {0, 0, 1, 2}});
  profile.Observe(seen.View(), 1, {0, 1, 0, 1, 0, 2, 0, 2, 2, 3});
  ObservedPredictor said(kTop2);
  const CalibratedPredictor probe(&said, &profile);
  const SmallBatch one(kTop2, {{-1, -1, -1, -1}});
  const auto ask = [&](const std::vector<int16_t>& predicted, int layer = 1) {
    said.SetPredictions(1, 2, predicted);
    return Ask(probe, one.View(), layer);
  };
  EXPECT_THAT(ask({0, 1}), ElementsAre(kRow, kRow / 2, kRow / 2, 0));
  EXPECT_THAT(ask({0, 2}), ElementsAre(kRow, 0, 0, kRow));
  EXPECT_THAT(PredictTokens(probe, said, one.View(), 1, 2), ElementsAre(0, 3));
  EXPECT_THAT(PredictTokens(probe, said, one.View(), 1, 4), ElementsAre(0, 3, 2, -1));
  EXPECT_THAT(ask({0, 3}), ElementsAre(kRow, kRow / 4, kRow / 4, kRow / 2));  // never seen: of 0
  EXPECT_THAT(ask({1, 0}), ElementsAre(kRow, kRow, 0, 0));                    // 1 first was never seen: as said
  EXPECT_THAT(PredictTokens(probe, said, one.View(), 1, 3), ElementsAre(0, 1, -1));
  EXPECT_THAT(ask({2, 3}), ElementsAre(0, 0, kRow, kRow));  // seen once, not twice
  EXPECT_THAT(ask({-1, -1}), ElementsAre());
  EXPECT_THAT(ask({0, 1}, 0), ElementsAre());
  said.Clear(1);
  EXPECT_THAT(Ask(probe, one.View(), 1), ElementsAre());  // of another batch
}

// A batch of 1024 rows learns a quarter of what it missed.
TEST(ShareCorrectionTest, AddsAPartOfTheLastErrorAndClips) {
  ShareCorrection correction(3);
  Popularity estimate = {400, 400, 200};
  correction.Update(estimate, {20, 0, 20}, 1024);  // shares 0.5 0 0.5: of the error 0.025 -0.1 0.075
  correction.Apply(absl::MakeSpan(estimate));
  EXPECT_THAT(estimate, ElementsAre(425, 300, 275));
  Popularity other = {0, 50, 950};
  correction.Apply(absl::MakeSpan(other));  // 0.025, 0.05 - 0.1 → 0, 1.025: of 1.05
  EXPECT_THAT(other, ElementsAre(24, 0, 976));
  correction.Update({1, 0, 0}, {0, 0, 0}, 0);  // nothing came: nothing learnt
  other = {400, 400, 200};
  correction.Apply(absl::MakeSpan(other));
  EXPECT_THAT(other, ElementsAre(425, 300, 275));
  // No error this time: a quarter of the old one is forgotten, of a large batch nearly half, of a small one hardly any.
  for (const auto& [rows, first] : {std::pair<int64_t, int64_t>{1024, 419}, {1 << 24, 412}, {8, 425}}) {
    ShareCorrection copy = correction;
    copy.Update({1, 1, 0}, {2, 2, 0}, rows);
    other = {400, 400, 200};
    copy.Apply(absl::MakeSpan(other));
    EXPECT_EQ(other[0], first) << rows;
  }
}

TEST(CorrectedPredictorTest, ALastingBiasGoesAway) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  CorrectedPredictor corrected(Marginal(profile), kShape);
  const SmallBatch batch(kShape, std::vector<std::vector<int16_t>>(1024, {2, 0}));
  constexpr int64_t kAll = 1024 * kRow;
  EXPECT_THAT(Ask(corrected, batch.View(), 0), ElementsAre(kAll / 4, kAll / 4, kAll / 4, kAll / 4));
  corrected.Observe(batch.View(), 0);
  // A quarter of the error (-1/4 -1/4 +3/4 -1/4).
  EXPECT_THAT(Ask(corrected, batch.View(), 0), ElementsAre(3 * kAll / 16, 3 * kAll / 16, 7 * kAll / 16, 3 * kAll / 16));
  for (int i = 0; i < 60; ++i) corrected.Observe(batch.View(), 0);
  EXPECT_GT(Ask(corrected, batch.View(), 0)[2], kAll - kRow);
}

TEST(BlendPredictorTest, FollowsWhoWasRight) {
  const PathProfile right = ProfileOf(SmallBatch(kShape, {{0, 0}, {0, 0}, {1, 0}, {1, 0}}));
  const PathProfile wrong = ProfileOf(SmallBatch(kShape, {{2, 0}, {2, 0}, {3, 0}, {3, 0}}));
  std::vector<std::unique_ptr<LoadPredictor>> inner;
  for (const PathProfile* profile : {&right, &wrong}) inner.push_back(Marginal(*profile));
  inner.push_back(std::make_unique<LoadPredictorOf<LastBatchPredictor>>(LastBatchPredictor(kShape)));
  BlendOfPredictors blend(std::move(inner), kShape);
  const SmallBatch batch(kShape, {{0, 0}, {1, 0}, {0, 0}, {1, 0}});
  // Nobody has been scored: the two that have an estimate count the same.
  EXPECT_THAT(Ask(blend, batch.View(), 0), ElementsAre(kRow, kRow, kRow, kRow));
  for (int i = 0; i < 4; ++i) blend.Observe(batch.View(), 0);
  const Popularity after = Ask(blend, batch.View(), 0);
  EXPECT_GT(after[0], 2 * kRow - kRow / 1000);
  EXPECT_LT(after[2], kRow / 100000);  // all wrong against hardly wrong: the fourth powers of 1 and 1/256
}

}  // namespace
}  // namespace switchyard::popularity
