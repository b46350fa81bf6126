#include "scheduler/placement/background/balance_search.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/placement/background/noise_cases.h"
#include "scheduler/popularity/popularity.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::CountArrivals;

struct Layer {
  Placement present;
  BalanceProblem problem;
};

popularity::Popularity RandomRows(int experts, std::mt19937* random) {
  popularity::Popularity rows(experts);
  for (int e = 0; e < experts; ++e)
    rows[e] = static_cast<int64_t>(1e5 / std::pow(1 + (*random)() % experts, 0.7)) * popularity::kRow;
  return rows;
}

void Describe(Layer* layer, const popularity::Popularity& rows, int devices, int layer_slots) {
  layer->problem.present = &layer->present;
  layer->problem.search = DrawCases({{rows, 1.0}}, devices, 0.06, 2, 1);
  layer->problem.judge = DrawCases({{rows, 1.0}}, devices, 0.06, 4, 2);
  layer->problem.layer_slots = layer_slots;
  layer->problem.seconds_per_load = 1;
}

double CostOf(const BalanceProblem& problem, const Placement& placement) {
  SplitCases split(placement, problem.judge);
  split.Finalize(1000);
  return problem.seconds_per_load * split.Busiest() +
         problem.seconds_per_copy * static_cast<double>(placement_drill::CountArrivals(*problem.present, placement));
}

// Every placement in which one expert that arrived stays away: its slot empty, with what was there before, or with what
// changed places with it.
std::vector<Placement> WithOneUndone(const Placement& present, const Placement& now) {
  std::vector<Placement> undone;
  for (int device = 0; device < now.num_devices(); ++device) {
    for (size_t slot = 0; slot < now.slots[device].size(); ++slot) {
      const int32_t expert = now.slots[device][slot];
      if (expert == kEmptySlot || present.Holds(device, expert)) continue;
      std::vector<int32_t> instead{kEmptySlot};
      for (const int32_t other : present.slots[device]) {
        if (other != kEmptySlot && !now.Holds(device, other)) instead.push_back(other);
      }
      for (const int32_t other : instead) {
        Placement less = now;
        less.slots[device][slot] = other;
        if (CheckPlacement(less).ok()) undone.push_back(less);
        const int home = present.DevicesOf(expert)[0];
        auto& there = less.slots[home];
        const auto swapped = other == kEmptySlot ? there.end() : std::find(there.begin(), there.end(), other);
        if (now.Holds(home, expert) || swapped == there.end()) continue;
        *swapped = expert;
        if (CheckPlacement(less).ok()) undone.push_back(less);
      }
    }
  }
  return undone;
}

// Cheaper than before, and no replica that arrived could stay away, nor any two experts that changed places.
TEST(BalanceSearchTest, EveryCopyEarnsItsCost) {
  std::mt19937 random(21);
  int64_t copies = 0;
  for (int round = 0; round < 30; ++round) {
    Layer layer{.present = ContiguousPlacement(64, 16, 2), .problem = {}};
    Describe(&layer, RandomRows(64, &random), 16, 5);
    layer.problem.seconds_per_copy = 0.015;
    const BalanceResult result = SearchBalance(layer.problem);
    ASSERT_TRUE(CheckPlacement(result.placement).ok());
    const Placement& present = layer.present;
    const double cost = CostOf(layer.problem, result.placement);
    EXPECT_LT(cost, CostOf(layer.problem, present));
    copies += placement_drill::CountArrivals(present, result.placement);
    EXPECT_NEAR(result.facts.spent_seconds,
                0.015 * static_cast<double>(placement_drill::CountArrivals(present, result.placement)), 1e-9);
    for (const Placement& less : WithOneUndone(present, result.placement)) {
      EXPECT_GE(CostOf(layer.problem, less), cost - 3e-4) << "round " << round << ": " << less.ToString();
    }
  }
  EXPECT_GT(copies, 30);
}

}  // namespace
}  // namespace switchyard::placement
