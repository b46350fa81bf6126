#include "tests/lab/routing/forecast_scores.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard {
namespace {

TEST(ForecastScoresTest, DistanceOfShares) {
  EXPECT_DOUBLE_EQ(TotalVariation({1, 3}, {25, 75}), 0);
  EXPECT_DOUBLE_EQ(TotalVariation({1, 0}, {0, 8}), 1);
  EXPECT_DOUBLE_EQ(TotalVariation({2, 2}, {3, 1}), 0.25);
  EXPECT_DOUBLE_EQ(TotalVariation({0, 0}, {0, 0}), 0);
  EXPECT_DOUBLE_EQ(TotalVariation({0, 0}, {0, 1}), 1);
}

TEST(ForecastScoresTest, ATokensOwnExpertsAmongItsFirstKPredictions) {
  constexpr popularity::RoutingShape kTop2{.num_layers = 2, .num_experts = 5, .top_k = 2};
  const popularity::SmallBatch batch(kTop2, {{0, 0, 1, 2}, {0, 0, 3, 4}, {0, 0, 4, -1}});
  const std::vector<int16_t> predicted = {2, 0, 1, 4, 3, 0, -1, -1, -1};  // [3, 3]
  const TokensFound tokens = CountFound(batch.View(), 1, 3, predicted);
  EXPECT_EQ(tokens.rows, 5);   // one was dropped
  EXPECT_EQ(tokens.found, 3);  // 2; 3 and 4: what is predicted third does not count
}

}  // namespace
}  // namespace switchyard
