#include "scheduler/placement/background/noise_cases.h"

#include <algorithm>
#include <cmath>

#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

// The random number of this counter and seed, in [-1, 1).
double Draw(uint64_t seed, uint64_t counter) {
  const uint64_t number = SplitMix(seed + counter * kSplitMixStep);
  return static_cast<double>(number >> 11) / static_cast<double>(uint64_t{1} << 52) - 1;
}

// Rows as they may be expected next time: differences between experts shrink by the share of their variance that
// counting alone explains (James and Stein's estimator; a count's variance is its mean).
std::vector<double> Expected(absl::Span<const int64_t> rows) {
  const auto experts = static_cast<double>(rows.size());
  const double mean = static_cast<double>(popularity::TotalOf(rows)) / experts;
  double variance = 0;
  for (const int64_t entry : rows)
    variance += (static_cast<double>(entry) - mean) * (static_cast<double>(entry) - mean) / experts;
  const double by_counting = mean * static_cast<double>(popularity::kRow);
  const double kept = variance > by_counting ? 1 - by_counting / variance : 0;
  std::vector<double> expected;
  for (const int64_t entry : rows) expected.push_back(mean + kept * (static_cast<double>(entry) - mean));
  return expected;
}

}  // namespace

double RelativeError(int64_t rows, double traffic_noise) {
  if (rows <= 0) return 1;
  const double counted = static_cast<double>(rows) / static_cast<double>(popularity::kRow);
  return std::min(1.0, std::sqrt(traffic_noise * traffic_noise + 2 / counted));
}

std::shared_ptr<const CaseRows> DrawCases(const std::vector<PhaseRows>& phases, int num_devices, double traffic_noise,
                                          int draws, uint64_t seed) {
  SY_CHECK_EQ(draws % 2, 0);
  const double kWidth = std::sqrt(3.0);  // of a uniform distribution with standard deviation 1
  std::vector<PhaseRows> counted;
  double weights = 0;
  for (const PhaseRows& phase : phases) {
    if (phase.weight <= 0 || popularity::TotalOf(phase.rows) == 0) continue;
    counted.push_back(phase);
    weights += phase.weight;
  }
  SY_CHECK(!counted.empty());
  const size_t experts = counted[0].rows.size();
  auto cases = std::make_shared<CaseRows>();
  cases->num_cases = static_cast<int>(counted.size()) * draws;
  cases->rows.assign(experts * cases->num_cases, 0);
  for (size_t p = 0; p < counted.size(); ++p) {
    const std::vector<double> expected = Expected(counted[p].rows);
    for (int draw = 0; draw < draws; ++draw) {
      const size_t c = p * draws + draw;
      double sum = 0;
      for (size_t expert = 0; expert < experts; ++expert) {
        const double error = RelativeError(static_cast<int64_t>(expected[expert]), traffic_noise);
        const double up = Draw(seed, (c / 2) * experts + expert) * kWidth * error;
        double& entry = cases->rows[expert * cases->num_cases + c];
        entry = expected[expert] * std::max(0.0, draw % 2 == 0 ? 1 + up : 1 - up);
        sum += entry;
      }
      for (size_t expert = 0; expert < experts && sum > 0; ++expert) {
        cases->rows[expert * cases->num_cases + c] *= num_devices / sum;
      }
      cases->weights.push_back(counted[p].weight / weights / draws);
    }
  }
  return cases;
}

}  // namespace switchyard::placement
