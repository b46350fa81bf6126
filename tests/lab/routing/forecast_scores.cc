#include "tests/lab/routing/forecast_scores.h"

#include <algorithm>
#include <cmath>

#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard {

double TotalVariation(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  SY_CHECK_EQ(a.size(), b.size());
  const int64_t sum_a = popularity::TotalOf(a), sum_b = popularity::TotalOf(b);
  if (sum_a == 0 || sum_b == 0) return sum_a == sum_b ? 0 : 1;
  double distance = 0;
  for (size_t e = 0; e < a.size(); ++e) {
    distance += std::abs(static_cast<double>(a[e]) / static_cast<double>(sum_a) -
                         static_cast<double>(b[e]) / static_cast<double>(sum_b));
  }
  return distance / 2;
}

TokensFound CountFound(const popularity::RoutingView& batch, int layer, int num_predicted,
                       absl::Span<const int16_t> predicted) {
  SY_CHECK_EQ(static_cast<int64_t>(predicted.size()), batch.num_tokens * num_predicted);
  const auto width = static_cast<size_t>(num_predicted);
  const size_t chosen = std::min(width, static_cast<size_t>(batch.shape.top_k));
  TokensFound tokens;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    const absl::Span<const int16_t> guesses = predicted.subspan(static_cast<size_t>(t) * width, chosen);
    for (const int16_t expert : batch.Experts(t, layer)) {
      if (expert < 0) continue;
      ++tokens.rows;
      tokens.found += std::find(guesses.begin(), guesses.end(), expert) != guesses.end();
    }
  }
  return tokens;
}

}  // namespace switchyard
