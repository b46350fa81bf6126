#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/blend_estimator.h"
#include "scheduler/popularity/corrected_estimator.h"
#include "scheduler/popularity/last_batch_estimator.h"
#include "scheduler/popularity/observed_estimator.h"
#include "scheduler/popularity/profile_estimator.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard {
namespace {

using testing::ElementsAre;

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};
constexpr RoutingShape kTop2{.num_layers = 2, .num_experts = 4, .top_k = 2};

// What is added to a row already there; empty if there is no estimate.
Popularity Ask(const Estimator& estimator, const RoutingView& batch, int layer) {
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

std::vector<int16_t> Predicted(const TokenEstimator& estimator, const RoutingView& batch, int layer, int num) {
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
TEST(ProfileEstimatorTest, SumsTheDistributionsOfTheTokensPaths) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfileEstimator path(&profile, {});
  const SmallBatch batch(kShape, {{0, -1}, {0, -1}, {3, -1}, {2, -1}});  // expert 2 was never seen: the marginal
  EXPECT_THAT(Ask(path, batch.View(), 1), ElementsAre(kRow + kRow / 3, 2 * kRow + 1, kRow / 2 + kRow / 6, 0));
  EXPECT_THAT(Ask(path, batch.View(), 0), ElementsAre());
  EXPECT_THAT(Predicted(path, batch.View(), 1, 3), ElementsAre(1, 2, -1, 1, 2, -1, 0, -1, -1, 1, 0, 2));
  EXPECT_THAT(Predicted(path, batch.View(), 0, 3), ElementsAre());
}

TEST(ProfileEstimatorTest, ThePapersRuleLeavesOutWhatIsNotAmongATokensTopK) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfileEstimator paper(&profile, {.name = "path_top_k", .mask_to_top_k = true});
  const SmallBatch batch(kShape, {{0, -1}, {3, -1}, {3, -1}});
  // 3/4 and 1 + 1 of 11/4, scaled to 3 rows.
  EXPECT_THAT(Ask(paper, batch.View(), 1), ElementsAre(2287802, 857926, 0, 0));
  EXPECT_EQ(paper.name(), "path_top_k");
}

TEST(ProfileEstimatorTest, MarginalIsTheSameForAllAndKnowsLayerZero) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, kHistory));
  const ProfileEstimator marginal(&profile, {.name = "marginal", .max_length = 0});
  const SmallBatch batch(kShape, {{3, -1}, {3, -1}, {3, -1}});
  EXPECT_THAT(Ask(marginal, batch.View(), 0), ElementsAre(2 * kRow, 0, 0, kRow));
  EXPECT_THAT(Ask(marginal, batch.View(), 1), ElementsAre(kRow, kRow + kRow / 2 + 2, kRow / 2 - 2, 0));
  const PathProfile nothing = ProfileOf(SmallBatch(kShape, {}));
  EXPECT_THAT(Ask(ProfileEstimator(&nothing, {.max_length = 0}), batch.View(), 0), ElementsAre());
}

TEST(ProfileEstimatorTest, APathSeenTooRarelyIsNotAsked) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, {{0, 1}, {3, 0}, {3, 0}}));
  const SmallBatch batch(kShape, {{0, -1}});
  EXPECT_THAT(Predicted(ProfileEstimator(&profile, {.min_tokens = 1}), batch.View(), 1, 1), ElementsAre(1));
  EXPECT_THAT(Predicted(ProfileEstimator(&profile, {.min_tokens = 2}), batch.View(), 1, 1), ElementsAre(0));
}

TEST(ProfileEstimatorTest, TokenIdsKnowLayerZeroAndNeedIds) {
  const PathProfile profile =
      ProfileOf(SmallBatch(kShape, {{0, 1}, {0, 1}, {3, 2}, {3, 2}}, {7, 7, 9, 9}), ContextKind::kToken);
  const ProfileEstimator token(&profile, {.name = "token", .max_length = 1});
  const SmallBatch batch(kShape, {{-1, -1}, {-1, -1}}, {9, 7});
  EXPECT_THAT(Predicted(token, batch.View(), 0, 1), ElementsAre(3, 0));
  EXPECT_THAT(Ask(token, batch.View(), 1), ElementsAre(0, kRow, kRow, 0));
  RoutingView no_ids = batch.View();
  no_ids.token_ids = nullptr;
  EXPECT_THAT(Ask(token, no_ids, 1), ElementsAre());
}

TEST(LastBatchEstimatorTest, ScalesWhatCameLast) {
  LastBatchEstimator last(kTop2);
  const SmallBatch first(kTop2, {{0, 1, 0, 1}, {0, 2, 0, 1}}), dropped(kTop2, {{-1, -1, -1, -1}});
  EXPECT_THAT(Ask(last, first.View(), 0), ElementsAre());
  last.Observe(first.View(), 0);
  last.Observe(dropped.View(), 0);  // of nothing there is nothing to say
  EXPECT_THAT(Ask(last, dropped.View(), 0), ElementsAre(kRow, kRow / 2, kRow / 2, 0));
  EXPECT_THAT(Ask(last, first.View(), 1), ElementsAre());
}

TEST(ObservedEstimatorTest, CountsTheFirstKOfEachTokenForOneBatch) {
  ObservedEstimator probe("probe", kTop2);
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

TEST(ShareCorrectionTest, AddsHalfOfTheLastErrorAndClips) {
  ShareCorrection correction(3);
  Popularity estimate = {400, 400, 200};
  correction.Update(estimate, {20, 0, 20});  // shares 0.5 0 0.5: half the error is 0.05 -0.2 0.15
  correction.Apply(absl::MakeSpan(estimate));
  EXPECT_THAT(estimate, ElementsAre(450, 200, 350));
  Popularity other = {0, 100, 900};
  correction.Apply(absl::MakeSpan(other));  // 0.05, 0.1 - 0.2 → 0, 1.05: of 1.1
  EXPECT_THAT(other, ElementsAre(45, 0, 955));
  correction.Update({1, 0, 0}, {0, 0, 0});  // nothing came: nothing learnt
  other = {400, 400, 200};
  correction.Apply(absl::MakeSpan(other));
  EXPECT_THAT(other, ElementsAre(450, 200, 350));
  // No error this time: the old one is forgotten by half.
  correction.Update({1, 1, 0}, {2, 2, 0});
  other = {400, 400, 200};
  correction.Apply(absl::MakeSpan(other));
  EXPECT_THAT(other, ElementsAre(425, 300, 275));
}

TEST(CorrectedEstimatorTest, ALastingBiasGoesAway) {
  const PathProfile profile = ProfileOf(SmallBatch(kShape, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  CorrectedEstimator corrected(
      std::make_unique<ProfileEstimator>(&profile, ProfileEstimatorOptions{.name = "marginal", .max_length = 0}),
      kShape);
  EXPECT_EQ(corrected.name(), "marginal_corrected");
  const SmallBatch batch(kShape, {{2, 0}, {2, 0}, {3, 0}, {3, 0}});
  EXPECT_THAT(Ask(corrected, batch.View(), 0), ElementsAre(kRow, kRow, kRow, kRow));
  corrected.Observe(batch.View(), 0);
  // Half of the error (-1/4 -1/4 +1/4 +1/4).
  EXPECT_THAT(Ask(corrected, batch.View(), 0), ElementsAre(kRow / 2, kRow / 2, 3 * kRow / 2, 3 * kRow / 2));
  for (int i = 0; i < 30; ++i) corrected.Observe(batch.View(), 0);
  EXPECT_THAT(Ask(corrected, batch.View(), 0),
              ElementsAre(testing::Le(16), testing::Le(16), testing::Ge(2 * kRow - 16), testing::Ge(2 * kRow - 16)));
}

TEST(BlendEstimatorTest, FollowsWhoWasRight) {
  const PathProfile right = ProfileOf(SmallBatch(kShape, {{0, 0}, {0, 0}, {1, 0}, {1, 0}}));
  const PathProfile wrong = ProfileOf(SmallBatch(kShape, {{2, 0}, {2, 0}, {3, 0}, {3, 0}}));
  std::vector<std::unique_ptr<Estimator>> inner;
  for (const PathProfile* profile : {&right, &wrong})
    inner.push_back(
        std::make_unique<ProfileEstimator>(profile, ProfileEstimatorOptions{.name = "marginal", .max_length = 0}));
  inner.push_back(std::make_unique<LastBatchEstimator>(kShape));
  BlendEstimator blend(std::move(inner), kShape);
  const SmallBatch batch(kShape, {{0, 0}, {1, 0}, {0, 0}, {1, 0}});
  // Nobody has been scored: the two that have an estimate count the same.
  EXPECT_THAT(Ask(blend, batch.View(), 0), ElementsAre(kRow, kRow, kRow, kRow));
  for (int i = 0; i < 4; ++i) blend.Observe(batch.View(), 0);
  const Popularity after = Ask(blend, batch.View(), 0);
  EXPECT_GT(after[0], 2 * kRow - kRow / 1000);
  EXPECT_GT(after[2], 0);
  EXPECT_LT(after[2], kRow / 10000);  // all wrong against hardly wrong: the squares of 1 and 1/256
}

}  // namespace
}  // namespace switchyard
