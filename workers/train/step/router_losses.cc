#include "workers/train/step/router_losses.h"

#include <numeric>

#include "scheduler/base/check.h"

namespace switchyard::train {
namespace {

struct RouterShape {
  int64_t layers = 0, top_k = 0, experts = 0;
};

RouterShape ShapeOf(absl::Span<const ops::RouterStatistics> totals) {
  RouterShape shape;
  for (const ops::RouterStatistics& each : totals) {
    if (each.probability_sums.empty()) continue;
    ++shape.layers;
    shape.experts = static_cast<int64_t>(each.probability_sums.size());
    shape.top_k = static_cast<int64_t>(each.counts.size()) / shape.experts;
  }
  return shape;
}

// Σ_k over the first `choices` choices, of one layer.
double Choices(const ops::RouterStatistics& totals, int64_t expert, int64_t choices) {
  const auto experts = static_cast<int64_t>(totals.probability_sums.size());
  int64_t sum = 0;
  for (int64_t k = 0; k < choices; ++k) sum += totals.counts[k * experts + expert];
  return static_cast<double>(sum);
}

void AddAllLayers(absl::Span<const ops::RouterStatistics> totals, const RouterShape& shape, double rows, double weight,
                  RouterLosses* losses) {
  const double all_rows = rows * static_cast<double>(shape.layers);
  std::vector<double> gradient(shape.experts);
  for (int64_t e = 0; e < shape.experts; ++e) {
    double chosen = 0, probability = 0;
    for (const ops::RouterStatistics& layer : totals) {
      if (layer.probability_sums.empty()) continue;
      chosen += Choices(layer, e, shape.top_k) / all_rows;
      probability += layer.probability_sums[e] / all_rows;
    }
    losses->balance += static_cast<double>(shape.experts) * chosen * probability;
    gradient[e] = weight * static_cast<double>(shape.experts) * chosen / all_rows;
  }
  for (size_t i = 0; i < totals.size(); ++i) {
    if (!totals[i].probability_sums.empty()) losses->prob_gradients[i] = gradient;
  }
}

void AddPerLayer(absl::Span<const ops::RouterStatistics> totals, const RouterShape& shape, double rows, double weight,
                 RouterLosses* losses) {
  const double part = static_cast<double>(shape.experts) / static_cast<double>(shape.layers);
  for (size_t i = 0; i < totals.size(); ++i) {
    if (totals[i].probability_sums.empty()) continue;
    losses->prob_gradients[i].resize(shape.experts);
    for (int64_t e = 0; e < shape.experts; ++e) {
      const double chosen = Choices(totals[i], e, 1) / rows;
      losses->balance += part * chosen * totals[i].probability_sums[e] / rows;
      losses->prob_gradients[i][e] = weight * part * chosen / rows;
    }
  }
}

}  // namespace

RouterLosses ComputeRouterLosses(const RouterLossOptions& options, absl::Span<const ops::RouterStatistics> totals,
                                 int64_t num_rows, double scale) {
  RouterLosses losses;
  losses.of_layers.resize(totals.size());
  losses.prob_gradients.resize(totals.size());
  const RouterShape shape = ShapeOf(totals);
  if (shape.layers == 0 || num_rows == 0) return losses;
  const auto rows = static_cast<double>(num_rows);
  const double weight = options.balance_weight * scale;
  if (options.balance == jobs::BalanceLoss::kAllLayers) AddAllLayers(totals, shape, rows, weight, &losses);
  if (options.balance == jobs::BalanceLoss::kPerLayer) AddPerLayer(totals, shape, rows, weight, &losses);
  const double z_part = 1 / (rows * static_cast<double>(shape.layers));
  for (size_t i = 0; i < totals.size(); ++i) {
    if (totals[i].probability_sums.empty()) continue;
    losses.z += z_part * totals[i].squared_logsumexp_sum;
    losses.of_layers[i] = {.prob_gradient = losses.prob_gradients[i], .z_scale = options.z_weight * scale * z_part};
  }
  return losses;
}

void MoveRouterBias(double rate, absl::Span<const int64_t> loads, const TensorView& bias) {
  const auto experts = static_cast<int64_t>(loads.size());
  SY_CHECK_EQ(bias.NumElements(), experts);
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  VisitDType(bias.dtype(), [&]<class Elem>() {
    for (int64_t e = 0; e < experts; ++e) {
      // (In integers, so that a load equal to the mean is recognised.)
      const int64_t over = loads[e] * experts - total;
      const int sign = over < 0 ? 1 : over > 0 ? -1 : 0;
      Elem& value = bias.data<Elem>()[e];
      value = static_cast<Elem>(static_cast<Acc<Elem>>(value) + static_cast<Acc<Elem>>(rate * sign));
    }
  });
}

}  // namespace switchyard::train
