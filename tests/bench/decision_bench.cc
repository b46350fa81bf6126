// The CPU time of a decision of the per-step balancer (scheduler/placement/per_step/layer_decision.h).  Its answers are
// checked: every row has a replica that holds its expert.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/comm/core/timed.h"

namespace switchyard {
namespace {

struct Sample {
  std::vector<double> values;
  void Add(double value) { values.push_back(value); }
  double At(double quantile) {
    SY_CHECK(!values.empty());
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1))];
  }
};

void CheckSplit(const placement::SplitTable& split, const placement::RowCounts& counts,
                const placement::Placement& placement) {
  for (int rank = 0; rank < counts.num_ranks; ++rank) {
    for (int expert = 0; expert < counts.num_experts; ++expert) {
      int64_t rows = 0;
      for (const placement::SplitPiece& piece : split.Pieces(rank, expert)) {
        SY_CHECK(placement.Holds(piece.device, expert));
        rows += piece.rows;
      }
      SY_CHECK_EQ(rows, counts.At(rank, expert));
    }
  }
}

// Weights of a Zipf load of exponent 1 over shuffled experts.
std::vector<double> ZipfLoad(std::mt19937_64& rng, int num_experts) {
  std::vector<int> rank(num_experts);
  std::iota(rank.begin(), rank.end(), 1);
  std::shuffle(rank.begin(), rank.end(), rng);
  std::vector<double> load;
  for (const int r : rank) load.push_back(1.0 / r);
  return load;
}

// CPU time of one decision: the split, and every time new slots (copies cost nothing, nothing is even enough).  Rows
// take longer than the reading of weights; where they do not, the split also joins parts.
double DecisionTable() {
  std::printf("decision time, CPU us a layer, one thread, uncontended only if the machine is idle\n");
  std::printf("experts/devices  spare  rows   median   p95\n");
  double asked = 0;
  for (const auto& [num_experts, num_devices] : {std::pair(16, 16), {64, 16}, {128, 16}, {256, 32}}) {
    for (const int spare : {1, 2}) {
      placement::PolicyShape shape{.residents = {placement::ContiguousPlacement(num_experts, num_devices, spare),
                                                 placement::ContiguousPlacement(num_experts, num_devices, spare)},
                                   .costs = {.copy_ps = 0, .row_ps = 1},
                                   .even_enough = 0};
      const std::unique_ptr<placement::PlacementPolicy> policy = placement::MakePlacementPolicy(shape).value();
      std::mt19937_64 rng(5);
      Sample time;
      for (int step = 0; step < 400; ++step) {
        const std::vector<double> weights = ZipfLoad(rng, num_experts);
        std::vector<int32_t> rows(static_cast<size_t>(num_devices) * num_experts);
        std::discrete_distribution<int> expert(weights.begin(), weights.end());
        for (int row = 0; row < 16384; ++row) ++rows[rng() % num_devices * num_experts + expert(rng)];
        const placement::RowCounts counts{num_devices, num_experts, rows};
        const double start = comm::ThreadCpuSeconds();
        const placement::LayerDecision decision =
            policy->Decide({.step = step / 2, .layer = step % 2, .counts = counts, .estimates = {}});
        time.Add(1e6 * (comm::ThreadCpuSeconds() - start));
        CheckSplit(decision.split, counts, policy->table(decision.layer).placement());
      }
      std::printf("%7d/%-7d %5d   16384  %6.1f %6.1f\n", num_experts, num_devices, spare, time.At(0.5), time.At(0.95));
      if (num_experts == 64) asked = std::max(asked, time.At(0.5));
    }
  }
  return asked;
}

}  // namespace
}  // namespace switchyard

int main() {
  std::printf("{\"decision_us\": %.1f}\n", switchyard::DecisionTable());
  return 0;
}
