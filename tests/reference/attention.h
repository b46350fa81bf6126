// Attention, naive and in double: the reference of workers/ops/attention/attention.  Shares no code with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace switchyard::reference {

struct AttentionCase {
  int64_t heads = 1, kv_heads = 1, head_dim = 8;
  int64_t window = 0;
  double scale = 1;
  std::vector<double> sinks = {};  // [N] scores that only add to the denominator; empty: none
  // Dropout: what a probability is multiplied by, 0 or 1 / (1 - rate); empty: 1.
  std::function<double(int64_t row, int64_t head, int64_t key)> factor = {};
  double Factor(int64_t row, int64_t head, int64_t key) const { return factor ? factor(row, head, key) : 1; }
};

// One query row at position pos over keys 0 … pos.  q [N*D], k and v [pos + 1][Nkv*D].  Returns [N*D].
inline std::vector<double> AttendOne(const AttentionCase& c, const std::vector<double>& q,
                                     const std::vector<std::vector<double>>& k,
                                     const std::vector<std::vector<double>>& v, int64_t pos) {
  std::vector<double> out(c.heads * c.head_dim, 0.0);
  const int64_t first = c.window > 0 ? std::max<int64_t>(0, pos - c.window + 1) : 0;
  for (int64_t h = 0; h < c.heads; ++h) {
    const int64_t kv = h / (c.heads / c.kv_heads);
    std::vector<double> score;
    for (int64_t j = first; j <= pos; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) dot += q[h * c.head_dim + d] * k[j][kv * c.head_dim + d];
      score.push_back(dot * c.scale);
    }
    double max = *std::max_element(score.begin(), score.end());
    if (!c.sinks.empty()) max = std::max(max, c.sinks[h]);
    double total = c.sinks.empty() ? 0 : std::exp(c.sinks[h] - max);
    for (double& s : score) total += s = std::exp(s - max);
    for (int64_t j = first; j <= pos; ++j) {
      for (int64_t d = 0; d < c.head_dim; ++d) {
        out[h * c.head_dim + d] += c.Factor(pos, h, j) * score[j - first] / total * v[j][kv * c.head_dim + d];
      }
    }
  }
  return out;
}

struct AttentionGradients {
  std::vector<std::vector<double>> q, k, v;  // [rows][N*D or Nkv*D]
};

// Of whole sequences: rows are positions 0, 1, …  d: of the outputs, [rows][N*D].
inline AttentionGradients AttendBackward(const AttentionCase& c, const std::vector<std::vector<double>>& q,
                                         const std::vector<std::vector<double>>& k,
                                         const std::vector<std::vector<double>>& v,
                                         const std::vector<std::vector<double>>& d) {
  const int64_t rows = static_cast<int64_t>(q.size()), dim = c.head_dim;
  const auto zeros = [&](int64_t heads) {
    return std::vector<std::vector<double>>(rows, std::vector<double>(heads * dim));
  };
  AttentionGradients g{zeros(c.heads), zeros(c.kv_heads), zeros(c.kv_heads)};
  for (int64_t h = 0; h < c.heads; ++h) {
    const int64_t at = h * dim, kv = h / (c.heads / c.kv_heads) * dim;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t first = c.window > 0 ? std::max<int64_t>(0, i - c.window + 1) : 0;
      std::vector<double> p(i + 1), dp(i + 1);
      double total = 0, mean = 0;
      for (int64_t j = first; j <= i; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < dim; ++e) {
          dot += q[i][at + e] * k[j][kv + e];
          dp[j] += d[i][at + e] * v[j][kv + e];
        }
        total += p[j] = std::exp(dot * c.scale);
        dp[j] *= c.Factor(i, h, j);
      }
      for (int64_t j = first; j <= i; ++j) mean += (p[j] /= total) * dp[j];
      for (int64_t j = first; j <= i; ++j) {
        const double ds = p[j] * (dp[j] - mean) * c.scale;
        for (int64_t e = 0; e < dim; ++e) {
          g.q[i][at + e] += ds * k[j][kv + e];
          g.k[j][kv + e] += ds * q[i][at + e];
          g.v[j][kv + e] += c.Factor(i, h, j) * p[j] * d[i][at + e];
        }
      }
    }
  }
  return g;
}

}  // namespace switchyard::reference
