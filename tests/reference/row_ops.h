// Ops that treat each row by itself, naive and in double.  Shares no code with workers/ops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace switchyard::reference {

using Vec = std::vector<double>;

inline Vec RmsNorm(const Vec& x, const Vec& gamma, double eps) {
  double sum = 0;
  for (double v : x) sum += v * v;
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = gamma[i] * x[i] / std::sqrt(sum / x.size() + eps);
  return y;
}

inline Vec LayerNorm(const Vec& x, const Vec& gamma, const Vec& beta, double eps) {
  double mean = 0, variance = 0;
  for (double v : x) mean += v;
  mean /= x.size();
  for (double v : x) variance += (v - mean) * (v - mean) / x.size();
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = gamma[i] * (x[i] - mean) / std::sqrt(variance + eps) + beta[i];
  return y;
}

inline double Gelu(double x, bool tanh) {
  if (!tanh) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

// One head; inv_freq has d/2 entries, pairs are (j, j + d/2), the rest stays.
inline Vec Rope(const Vec& x, const Vec& inv_freq, double attention_factor, double position) {
  Vec y = x;
  const size_t half = inv_freq.size();
  for (size_t j = 0; j < half; ++j) {
    const double c = std::cos(position * inv_freq[j]) * attention_factor;
    const double s = std::sin(position * inv_freq[j]) * attention_factor;
    y[j] = x[j] * c - x[j + half] * s;
    y[j + half] = x[j + half] * c + x[j] * s;
  }
  return y;
}

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline Vec SwiGlu(const Vec& gate, const Vec& up) {
  Vec y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
  return y;
}

inline Vec Softmax(const Vec& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  Vec p;
  for (double l : logits) p.push_back(std::exp(l - max));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= total;
  return p;
}

struct Route {
  std::vector<int> experts;
  Vec weights;
};

// bias: of the choice alone; empty: none.
inline Route RouteTopK(const Vec& logits, int k, bool renormalize, const Vec& bias = {}) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const Vec p = Softmax(logits);
  const auto score = [&](int e) { return bias.empty() ? logits[e] : p[e] + bias[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score(a) > score(b); });
  Route route;
  double kept = 0;
  for (int i = 0; i < k; ++i) {
    route.experts.push_back(order[i]);
    route.weights.push_back(p[order[i]]);
    kept += p[order[i]];
  }
  for (double& w : route.weights) w /= renormalize ? kept : 1.0;
  return route;
}

}  // namespace switchyard::reference
