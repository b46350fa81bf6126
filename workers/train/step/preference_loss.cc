#include "workers/train/step/preference_loss.h"

#include <algorithm>
#include <cmath>

namespace switchyard::train {
namespace {

// -log sigmoid(x), without overflow.
double MinusLogSigmoid(double x) { return std::max(-x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double Sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

}  // namespace

PairLoss PairLossOf(const jobs::DpoSpec& dpo, const PairLogProbs& model, const PairLogProbs& reference) {
  const double s = dpo.label_smoothing;
  PairLoss pair;
  pair.margin = dpo.beta * ((model.chosen - reference.chosen) - (model.rejected - reference.rejected));
  pair.loss = (1 - s) * MinusLogSigmoid(pair.margin) + s * MinusLogSigmoid(-pair.margin);
  pair.slope = dpo.beta * (s * Sigmoid(pair.margin) - (1 - s) * Sigmoid(-pair.margin));
  return pair;
}

void PreferenceSums::Add(const PairLoss& pair) {
  loss += pair.loss;
  margin += pair.margin;
  accurate += pair.margin > 0 ? 1 : 0;
}

jobs::PreferenceFigures PreferenceSums::Mean(int64_t pairs) const {
  const auto count = static_cast<double>(std::max<int64_t>(pairs, 1));
  return {.margin = margin / count, .accuracy = accurate / count, .pairs = pairs};
}

}  // namespace switchyard::train
