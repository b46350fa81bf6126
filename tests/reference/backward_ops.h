// The backward pass of ops that treat each row by itself, naive and in double.  Shares no code with workers/ops.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/reference/row_ops.h"

namespace switchyard::reference {

// dgate, then dup.
inline Vec SwiGluBackward(const Vec& sums, const Vec& dhidden) {
  const size_t f = dhidden.size();
  Vec d(2 * f);
  for (size_t i = 0; i < f; ++i) {
    const double gate = sums[i], up = sums[f + i], s = Sigmoid(gate);
    d[i] = dhidden[i] * up * (s + gate * s * (1 - s));
    d[f + i] = dhidden[i] * gate * s;
  }
  return d;
}

struct NormGradients {
  Vec dx, dgamma;
};

inline NormGradients RmsNormBackward(const Vec& x, const Vec& gamma, double eps, const Vec& dy) {
  const size_t width = x.size();
  double squares = 0, dot = 0;
  for (size_t i = 0; i < width; ++i) squares += x[i] * x[i], dot += gamma[i] * dy[i] * x[i];
  const double r = 1 / std::sqrt(squares / width + eps);
  NormGradients g{Vec(width), Vec(width)};
  for (size_t i = 0; i < width; ++i) {
    g.dx[i] = gamma[i] * dy[i] * r - x[i] * r * r * r * dot / width;
    g.dgamma[i] = dy[i] * x[i] * r;
  }
  return g;
}

struct LayerNormGradients {
  Vec dx, dgamma;  // (dbeta is dy)
};

inline LayerNormGradients LayerNormBackward(const Vec& x, const Vec& gamma, double eps, const Vec& dy) {
  const size_t width = x.size();
  const Vec n = LayerNorm(x, Vec(width, 1), Vec(width, 0), eps);
  double mean = 0, variance = 0, dn_mean = 0, pull = 0;
  for (double v : x) mean += v / width;
  for (double v : x) variance += (v - mean) * (v - mean) / width;
  for (size_t i = 0; i < width; ++i) {
    dn_mean += gamma[i] * dy[i] / width;
    pull += gamma[i] * dy[i] * n[i] / width;
  }
  LayerNormGradients g{Vec(width), Vec(width)};
  for (size_t i = 0; i < width; ++i) {
    g.dx[i] = (gamma[i] * dy[i] - dn_mean - n[i] * pull) / std::sqrt(variance + eps);
    g.dgamma[i] = dy[i] * n[i];
  }
  return g;
}

inline double GeluSlope(double x, bool tanh) {
  const double pi = std::acos(-1.0);
  if (!tanh) return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi);
  const double root = std::sqrt(2 / pi), t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

struct RouterCase {
  std::vector<int> chosen;    // of each k, dropped ones too
  std::vector<bool> dropped;  // of each k
  Vec dweight;                // of each k
  Vec dprob;                  // of each expert
  double z_scale = 0;
  bool renormalize = false;
};

inline Vec RouterBackward(const Vec& logits, const RouterCase& c) {
  const Vec p = Softmax(logits);
  const size_t experts = p.size();
  Vec dp = c.dprob;
  double kept = 0;
  for (int e : c.chosen) kept += p[e];
  for (size_t k = 0; k < c.chosen.size(); ++k) {
    if (c.dropped[k]) continue;
    if (!c.renormalize) {
      dp[c.chosen[k]] += c.dweight[k];
      continue;
    }
    // w = p[chosen[k]] / kept, by each p of the divisor and by its own.
    dp[c.chosen[k]] += c.dweight[k] / kept;
    for (int e : c.chosen) dp[e] -= c.dweight[k] * p[c.chosen[k]] / (kept * kept);
  }
  double total = 0, max = logits[0];
  for (double l : logits) max = std::max(max, l);
  for (double l : logits) total += std::exp(l - max);
  const double lse = max + std::log(total);
  Vec d(experts);
  for (size_t i = 0; i < experts; ++i) {
    for (size_t j = 0; j < experts; ++j) d[i] += dp[j] * p[j] * ((i == j ? 1 : 0) - p[i]);
    d[i] += 2 * c.z_scale * lse * p[i];
  }
  return d;
}

}  // namespace switchyard::reference
