// Attention, naive and in double: the oracle for workers/ops/attention.  Shares no code with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace switchyard::reference {

struct AttentionCase {
  int64_t heads = 1, kv_heads = 1, head_dim = 8;
  int64_t window = 0;
  double scale = 1;
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
    const double max = *std::max_element(score.begin(), score.end());
    double total = 0;
    for (double& s : score) total += s = std::exp(s - max);
    for (int64_t j = first; j <= pos; ++j) {
      for (int64_t d = 0; d < c.head_dim; ++d) {
        out[h * c.head_dim + d] += score[j - first] / total * v[j][kv * c.head_dim + d];
      }
    }
  }
  return out;
}

}  // namespace switchyard::reference
