#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/predictors/blend_predictor.h"
#include "scheduler/popularity/predictors/calibrated_predictor.h"
#include "scheduler/popularity/predictors/last_batch_predictor.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"
#include "tests/lab/routing/corrected_predictor.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};
constexpr RoutingShape kTop2{.num_layers = 2, .num_experts = 4, .top_k = 2};

// What is added to a row already there; empty if there is no estimate.
Popularity Ask(const LoadPredictor& estimator, const RoutingView& batch, int layer) {
  constexpr int64_t kAlready = 5;
  Popularity popularity(static_cast<size_t>(batch.shape.num_experts), kAlready);
  const bool known = estimator.Estimate(batch, layer, absl::MakeSpan(popularity));
  for (int64_t& entry : popularity) entry -= kAlready;
  if (!known) {
    EXPECT_EQ(TotalOf(popularity), 0);
    return {};
  }
  EXPECT_EQ(TotalOf(popularity), batch.num_tokens * batch.shape.top_k * kRow);
  return popularity;
}

std::vector<int16_t> Predicted(const TokenPredictor& estimator, const RoutingView& batch, int layer, int num) {
  std::vector<int16_t> predicted(static_cast<size_t>(batch.num_tokens * num), 99);
  if (!estimator.Predict(batch, layer, num, absl::MakeSpan(predicted))) return {};
  return predicted;
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

// After expert 0: 1 three times in four, 2 once.  After 3: always 0.
const std::vector<std::vector<int16_t>> kHistory = {{0, 1}, {0, 1}, {0, 1}, {0, 2}, {3, 0}, {3, 0}};

// Shares are rounded down to 2^-20; what that leaves goes by largest remainder.
TEST(ProfilePredictorTest, SumsTheDistributionsOfTheTokensPaths) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor path(&profile, {});
  const SmallBatch batch(kShape, {{0, -1}, {0, -1}, {3, -1}, {2, -1}});  // expert 2 was never seen: the marginal
  EXPECT_THAT(Ask(path, batch.View(), 1), ElementsAre(kRow + kRow / 3, 2 * kRow + 1, kRow / 2 + kRow / 6, 0));
  EXPECT_THAT(Ask(path, batch.View(), 0), ElementsAre());
  EXPECT_THAT(Predicted(path, batch.View(), 1, 3), ElementsAre(1, 2, -1, 1, 2, -1, 0, -1, -1, 1, 0, 2));
  EXPECT_THAT(Predicted(path, batch.View(), 0, 3), ElementsAre());
}

TEST(ProfilePredictorTest, ThePapersRuleLeavesOutWhatIsNotAmongATokensTopK) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor paper(&profile, {.name = "path_top_k", .mask_to_top_k = true});
  const SmallBatch batch(kShape, {{0, -1}, {3, -1}, {3, -1}});
  // 3/4 and 1 + 1 of 11/4, scaled to 3 rows.
  EXPECT_THAT(Ask(paper, batch.View(), 1), ElementsAre(2287802, 857926, 0, 0));
  EXPECT_EQ(paper.name(), "path_top_k");
}

TEST(ProfilePredictorTest, MarginalIsTheSameForAllAndKnowsLayerZero) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfilePredictor marginal(&profile, {.name = "marginal", .max_length = 0});
  const SmallBatch batch(kShape, {{3, -1}, {3, -1}, {3, -1}});
  EXPECT_THAT(Ask(marginal, batch.View(), 0), ElementsAre(2 * kRow, 0, 0, kRow));
  EXPECT_THAT(Ask(marginal, batch.View(), 1), ElementsAre(kRow, kRow + kRow / 2 + 2, kRow / 2 - 2, 0));
  const PathProfile nothing = ProfileOf(SmallBatch(kShape, {}));
  EXPECT_THAT(Ask(ProfilePredictor(&nothing, {.max_length = 0}), batch.View(), 0), ElementsAre());
}

TEST(ProfilePredictorTest, APathSeenTooRarelyIsNotAsked) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, {{0, 1}, {3, 0}, {3, 0}}));
  const SmallBatch batch(kShape, {{0, -1}});
  EXPECT_THAT(Predicted(ProfilePredictor(&profile, {.min_tokens = 1}), batch.View(), 1, 1), ElementsAre(1));
  EXPECT_THAT(Predicted(ProfilePredictor(&profile, {.min_tokens = 2}), batch.View(), 1, 1), ElementsAre(0));
}

TEST(ProfilePredictorTest, TokenIdsKnowLayerZeroAndNeedIds) {
  const PathProfile profile =
      ProfileOf(SmallBatch(kShape, {{0, 1}, {0, 1}, {3, 2}, {3, 2}}, {7, 7, 9, 9}), ContextKind::kToken);
  const ProfilePredictor token(&profile, {.name = "token", .max_length = 1});
  const SmallBatch batch(kShape, {{-1, -1}, {-1, -1}}, {9, 7});
  EXPECT_THAT(Predicted(token, batch.View(), 0, 1), ElementsAre(3, 0));
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
  ObservedPredictor probe("probe", kTop2);
  const SmallBatch batch(kTop2, {{-1, -1, -1, -1}, {-1, -1, -1, -1}});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());
  probe.SetPredictions(1, 3, {0, 2, 1, 2, 3, -1});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre(kRow, 0, 2 * kRow, kRow));
  EXPECT_THAT(Predicted(probe, batch.View(), 1, 2), ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(Predicted(probe, batch.View(), 1, 4), ElementsAre(0, 2, 1, -1, 2, 3, -1, -1));
  EXPECT_THAT(Ask(probe, batch.View(), 0), ElementsAre());
  probe.Observe(batch.View(), 1);
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());  // it was said of another batch
  probe.SetPredictions(1, 2, {-1, -1, -1, -1});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre());
  probe.SetCounts(1, {3, 0, 0, 1});
  EXPECT_THAT(Ask(probe, batch.View(), 1), ElementsAre(3 * kRow, 0, 0, kRow));
  EXPECT_THAT(Predicted(probe, batch.View(), 1, 1), ElementsAre());
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
  const auto probe = [&](const std::vector<int16_t>& said) {
    auto inner = std::make_unique<ObservedPredictor>("probe", kTop2);
    inner->SetPredictions(1, 2, said);
    return std::make_unique<CalibratedPredictor>(std::move(inner), &profile);
  };
  const SmallBatch one(kTop2, {{-1, -1, -1, -1}});
  EXPECT_EQ(probe({0, 1})->name(), "probe_calibrated");
  EXPECT_THAT(Ask(*probe({0, 1}), one.View(), 1), ElementsAre(kRow, kRow / 2, kRow / 2, 0));
  EXPECT_THAT(Ask(*probe({0, 2}), one.View(), 1), ElementsAre(kRow, 0, 0, kRow));
  EXPECT_THAT(Ask(*probe({0, 3}), one.View(), 1), ElementsAre(kRow, kRow / 4, kRow / 4, kRow / 2));  // never seen: of 0
  EXPECT_THAT(Ask(*probe({1, 0}), one.View(), 1), ElementsAre(kRow, kRow, 0, 0));  // 1 first was never seen: as said
  EXPECT_THAT(Ask(*probe({2, 3}), one.View(), 1), ElementsAre(0, 0, kRow, kRow));  // seen once, not twice
  EXPECT_THAT(Ask(*probe({-1, -1}), one.View(), 1), ElementsAre());
  EXPECT_THAT(Ask(*probe({0, 1}), one.View(), 0), ElementsAre());
  EXPECT_THAT(Predicted(*probe({0, 2}), one.View(), 1, 2), ElementsAre(0, 3));
  EXPECT_THAT(Predicted(*probe({0, 2}), one.View(), 1, 4), ElementsAre(0, 3, 2, -1));
  EXPECT_THAT(Predicted(*probe({1, 0}), one.View(), 1, 3), ElementsAre(0, 1, -1));
  const auto said = probe({0, 1});
  said->Observe(one.View(), 1);
  EXPECT_THAT(Ask(*said, one.View(), 1), ElementsAre());  // of another batch
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
  CorrectedPredictor corrected(
      std::make_unique<ProfilePredictor>(&profile, ProfilePredictorOptions{.name = "marginal", .max_length = 0}),
      kShape);
  EXPECT_EQ(corrected.name(), "marginal_corrected");
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
  for (const PathProfile* profile : {&right, &wrong})
    inner.push_back(
        std::make_unique<ProfilePredictor>(profile, ProfilePredictorOptions{.name = "marginal", .max_length = 0}));
  inner.push_back(std::make_unique<LastBatchPredictor>(kShape));
  BlendPredictor blend(std::move(inner), kShape);
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
