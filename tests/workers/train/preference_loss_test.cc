// The loss of a pair of answers: against its formula, and its slope against finite differences.
#include "workers/train/step/preference_loss.h"

#include <cmath>

#include "gtest/gtest.h"

namespace switchyard::train {
namespace {

// The formula, in long double, which does not overflow for these margins.
double Naive(const jobs::DpoSpec& dpo, long double margin) {
  const long double s = dpo.label_smoothing;
  const long double up = std::log(1 / (1 + std::exp(-margin))), down = std::log(1 / (1 + std::exp(margin)));
  return static_cast<double>(-(1 - s) * up - s * down);
}

TEST(PreferenceLossTest, IsItsFormula) {
  for (const double beta : {0.01, 0.1, 2.0}) {
    for (const double smoothing : {0.0, 0.1, 0.45}) {
      const jobs::DpoSpec dpo = {.beta = beta, .label_smoothing = smoothing};
      for (const double chosen : {-31.5, -30.0, -2.0}) {
        const PairLogProbs model = {chosen, -25.5}, reference = {-30, -24.25};
        const double margin = beta * ((chosen + 30) - (-25.5 + 24.25));
        const PairLoss pair = PairLossOf(dpo, model, reference);
        EXPECT_DOUBLE_EQ(pair.margin, margin);
        EXPECT_NEAR(pair.loss, Naive(dpo, margin), 1e-14 * (1 + std::abs(margin)));
        const double step = 1e-5;
        const double above = PairLossOf(dpo, {chosen + step, -25.5}, reference).loss;
        const double below = PairLossOf(dpo, {chosen - step, -25.5}, reference).loss;
        EXPECT_NEAR(pair.slope, (above - below) / (2 * step), 1e-8 * beta);
        const double worse = PairLossOf(dpo, {chosen, -25.5 + step}, reference).loss;
        const double better = PairLossOf(dpo, {chosen, -25.5 - step}, reference).loss;
        EXPECT_NEAR(-pair.slope, (worse - better) / (2 * step), 1e-8 * beta);
      }
    }
  }
}

TEST(PreferenceLossTest, FarMarginsStayFinite) {
  const jobs::DpoSpec dpo = {.beta = 1, .label_smoothing = 0.1};
  const PairLoss good = PairLossOf(dpo, {0, -5000}, {-5000, 0}), bad = PairLossOf(dpo, {-5000, 0}, {0, -5000});
  EXPECT_DOUBLE_EQ(good.loss, 0.1 * 10'000);
  EXPECT_DOUBLE_EQ(good.slope, 0.1);
  EXPECT_DOUBLE_EQ(bad.loss, 0.9 * 10'000);
  EXPECT_DOUBLE_EQ(bad.slope, -0.9);
}

TEST(PreferenceLossTest, SumsHaveTheirMeans) {
  PreferenceSums sums;
  sums.Add({.loss = 1, .margin = 3});
  sums.Add({.loss = 2, .margin = -1});
  sums.Add({.loss = 3, .margin = 0});  // neither is better
  const jobs::PreferenceFigures mean = sums.Mean(3);
  EXPECT_EQ(sums.loss, 6);
  EXPECT_DOUBLE_EQ(mean.margin, 2.0 / 3);
  EXPECT_DOUBLE_EQ(mean.accuracy, 1.0 / 3);
  EXPECT_EQ(mean.pairs, 3);
  EXPECT_EQ(PreferenceSums().Mean(0), jobs::PreferenceFigures());
}

}  // namespace
}  // namespace switchyard::train
