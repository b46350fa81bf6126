#include "workers/train/step/router_losses.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::train {
namespace {

constexpr int64_t kLayers = 3, kRows = 7, kExperts = 5, kTopK = 2;

// The routers' output of a pass: probabilities [L][T][E] of rows that chose their first two experts.  Layer 1 is dense.
struct Pass {
  std::vector<std::vector<std::vector<double>>> probabilities;
  std::vector<std::vector<std::vector<int>>> chosen;
  double squared_logsumexp = 0.7;  // of each row
};

Pass MakePass() {
  std::mt19937 generator(5);
  std::uniform_real_distribution<double> uniform(0.1, 1);
  Pass pass;
  for (int64_t l = 0; l < kLayers; ++l) {
    pass.probabilities.emplace_back();
    pass.chosen.emplace_back();
    for (int64_t t = 0; l != 1 && t < kRows; ++t) {
      std::vector<double> row(kExperts);
      double sum = 0;
      for (double& p : row) sum += p = uniform(generator);
      for (double& p : row) p /= sum;
      pass.probabilities[l].push_back(row);
      pass.chosen[l].push_back({static_cast<int>(generator() % kExperts), static_cast<int>(generator() % kExperts)});
    }
  }
  return pass;
}

std::vector<ops::RouterStatistics> StatisticsOf(const Pass& pass) {
  std::vector<ops::RouterStatistics> all(kLayers);
  for (int64_t l = 0; l < kLayers; ++l) {
    if (pass.probabilities[l].empty()) continue;
    all[l].counts.resize(kTopK * kExperts);
    all[l].probability_sums.resize(kExperts);
    all[l].squared_logsumexp_sum = kRows * pass.squared_logsumexp;
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t e = 0; e < kExperts; ++e) all[l].probability_sums[e] += pass.probabilities[l][t][e];
      for (int64_t k = 0; k < kTopK; ++k) ++all[l].counts[k * kExperts + pass.chosen[l][t][k]];
    }
  }
  return all;
}

// transformers' load_balancing_loss_func, word by word: one-hot masks, means, products.
double AsTransformers(const Pass& pass) {
  double loss = 0;
  for (int64_t k = 0; k < kTopK; ++k) {
    for (int64_t e = 0; e < kExperts; ++e) {
      double tokens_per_expert = 0, probability = 0;
      for (int64_t l = 0; l < kLayers; ++l) {
        for (size_t t = 0; t < pass.probabilities[l].size(); ++t) {
          tokens_per_expert += pass.chosen[l][t][k] == e ? 1 : 0;
          probability += pass.probabilities[l][t][e];
        }
      }
      const double rows = 2 * kRows;
      loss += tokens_per_expert / rows * (probability / rows);
    }
  }
  return loss * kExperts;
}

// The mean over layers of E Σ_e (share of first choices) (mean probability).
double AsSwitch(const Pass& pass) {
  double loss = 0;
  for (int64_t l = 0; l < kLayers; ++l) {
    for (int64_t e = 0; e < kExperts && !pass.probabilities[l].empty(); ++e) {
      double share = 0, probability = 0;
      for (int64_t t = 0; t < kRows; ++t) {
        share += pass.chosen[l][t][0] == e ? 1.0 / kRows : 0;
        probability += pass.probabilities[l][t][e] / kRows;
      }
      loss += kExperts * share * probability / 2;
    }
  }
  return loss;
}

void ExpectLossAndItsSlope(jobs::BalanceLoss kind, double (*expected)(const Pass&)) {
  const RouterLossOptions options = {.balance = kind, .balance_weight = 0.3};
  Pass pass = MakePass();
  const RouterLosses losses = ComputeRouterLosses(options, StatisticsOf(pass), kRows, /*scale=*/0.5);
  EXPECT_NEAR(losses.balance, expected(pass), 1e-14);
  for (int64_t l = 0; l < kLayers; ++l) {
    ASSERT_EQ(losses.of_layers[l].prob_gradient.size(), pass.probabilities[l].empty() ? 0u : size_t{kExperts});
    for (int64_t e = 0; e < kExperts && !pass.probabilities[l].empty(); ++e) {
      double& probability = pass.probabilities[l][3][e];
      const double before = probability;
      probability = before + 1e-4;
      const double slope = (expected(pass) - losses.balance) / 1e-4;  // it is linear in each
      probability = before;
      EXPECT_NEAR(losses.of_layers[l].prob_gradient[e], 0.3 * 0.5 * slope, 1e-11) << "layer " << l << ", expert " << e;
    }
  }
}

TEST(RouterLossesTest, AllLayersAsTransformers) {
  ExpectLossAndItsSlope(jobs::BalanceLoss::kAllLayers, &AsTransformers);
}
TEST(RouterLossesTest, PerLayerAsSwitch) { ExpectLossAndItsSlope(jobs::BalanceLoss::kPerLayer, &AsSwitch); }

TEST(RouterLossesTest, ZLossIsAMean) {
  const RouterLosses losses = ComputeRouterLosses({.balance = jobs::BalanceLoss::kNone, .z_weight = 0.25},
                                                  StatisticsOf(MakePass()), kRows, /*scale=*/0.5);
  EXPECT_NEAR(losses.z, 0.7, 1e-14);
  EXPECT_EQ(losses.balance, 0);
  // Of each of the 14 rows: weight * scale / rows.
  EXPECT_NEAR(losses.of_layers[0].z_scale, 0.25 * 0.5 / 14, 1e-16);
  EXPECT_EQ(losses.of_layers[1].z_scale, 0);
}

TEST(RouterLossesTest, NothingOfNothing) {
  const RouterLosses none = ComputeRouterLosses({.balance_weight = 1}, StatisticsOf(MakePass()), 0, 1);
  EXPECT_EQ(none.balance, 0);
  EXPECT_TRUE(none.of_layers[0].prob_gradient.empty());
  EXPECT_TRUE(ComputeRouterLosses({.balance_weight = 1}, std::vector<ops::RouterStatistics>(2), 5, 1)
                  .of_layers[0]
                  .prob_gradient.empty());
}

}  // namespace
}  // namespace switchyard::train
