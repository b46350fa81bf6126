#include "scheduler/placement/background/residency.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/background/noise_cases.h"
#include "scheduler/placement/route/min_max.h"
#include "tests/lab/placement/eplb_residency.h"

namespace switchyard::placement {
namespace {

using testing::HasSubstr;

// Busiest device over the mean under the exact best split.
double Imbalance(const Placement& layer, const popularity::Popularity& rows) {
  return static_cast<double>(MinimizeBusiest(ReplicaIndex(layer), rows).busiest) * layer.num_devices() /
         static_cast<double>(popularity::TotalOf(rows));
}

// Zipf loads over shuffled experts, about 100 000 rows.
popularity::Popularity Zipf(int experts, double exponent, uint32_t seed) {
  std::vector<int32_t> order(experts);
  for (int e = 0; e < experts; ++e) order[e] = e;
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  popularity::Popularity rows(experts);
  double sum = 0;
  for (int e = 0; e < experts; ++e) sum += std::pow(e + 1, -exponent);
  for (int e = 0; e < experts; ++e)
    rows[order[e]] = static_cast<int64_t>(1e5 / sum * std::pow(e + 1, -exponent)) * popularity::kRow;
  return rows;
}

popularity::Popularity Noisy(popularity::Popularity rows, std::mt19937* random) {
  for (int64_t& entry : rows) entry = entry / 1000 * (900 + static_cast<int64_t>((*random)() % 201));
  return rows;
}

ResidencyCosts Costs() { return {.row_seconds = 1e-5, .move_seconds = 1e-3, .expert_bytes = 1 << 20}; }

ResidencyProblem Problem(int layers, int experts, int devices, int spare) {
  ResidencyProblem problem{.phases = {},
                           .present = std::vector<Placement>(layers, ContiguousPlacement(experts, devices, spare + 1)),
                           .layer_slots = experts / devices + spare,
                           .costs = Costs()};
  problem.phases.push_back(
      {.steps = 100, .rows = std::vector<popularity::Popularity>(layers, popularity::Popularity(experts, 0))});
  return problem;
}

// The plan's migrations lead from `present` to what it says, within the limits.
void ExpectExecutable(const ResidencyProblem& problem, const ResidencyPlan& plan) {
  std::vector<Placement> layers = problem.present;
  for (const ResidencyMigration& migration : plan.migrations) {
    const absl::Status status = ApplyMigration(migration, problem.layer_slots, &layers);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(CheckResidency(layers, problem.layer_slots).ok()) << CheckResidency(layers, problem.layer_slots);
  EXPECT_EQ(layers, plan.layers);
  EXPECT_EQ(plan.bytes, plan.copies * problem.costs.expert_bytes);
}

TEST(ResidencyTest, SkewIsLevelledAndThenNoiseMovesNextToNothing) {
  std::mt19937 random(5);
  ResidencyProblem problem = Problem(2, 64, 16, 1);
  const std::vector<popularity::Popularity> rows{Zipf(64, 1.0, 1), Zipf(64, 0.7, 2)};
  problem.phases[0].rows = rows;
  const auto first = PlanResidency(problem);
  ASSERT_TRUE(first.ok()) << first.status();
  ExpectExecutable(problem, *first);
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_GT(Imbalance(problem.present[layer], rows[layer]), 2);
    EXPECT_LT(Imbalance(first->layers[layer], rows[layer]), 1.03);
    EXPECT_GT(first->layer_facts[layer].saved_seconds, first->layer_facts[layer].spent_seconds);
  }
  EXPECT_LE(first->copies, 2 * 3 * 16);
  int64_t ours = 0, eplb = 0, matched = 0;
  problem.present = first->layers;
  ResidencyProblem by_eplb = problem, by_matching = problem;
  for (int window = 0; window < 6; ++window) {
    for (int layer = 0; layer < 2; ++layer) problem.phases[0].rows[layer] = Noisy(rows[layer], &random);
    by_eplb.phases = by_matching.phases = problem.phases;
    const auto plan = PlanResidency(problem), theirs = PlanEplbResidency(by_eplb, false);
    const auto relabelled = PlanEplbResidency(by_matching, true);
    ASSERT_TRUE(plan.ok() && theirs.ok() && relabelled.ok());
    ExpectExecutable(problem, *plan);
    ExpectExecutable(by_eplb, *theirs);
    ExpectExecutable(by_matching, *relabelled);
    if (window > 0) ours += plan->copies, eplb += theirs->copies, matched += relabelled->copies;
    problem.present = plan->layers;
    by_eplb.present = theirs->layers;
    by_matching.present = relabelled->layers;
  }
  const int64_t slots = 5 * 2 * 80;  // rebalances, layers, slots
  EXPECT_LE(ours, slots * 3 / 100) << "of " << slots << "; eplb " << eplb << ", matched " << matched;
  EXPECT_GT(eplb, slots / 2);
  EXPECT_LT(matched, eplb);
}

// What a move saves has to exceed what it costs: dearer copies, fewer moves; none where nothing is saved.
TEST(ResidencyTest, MovesPayWithinTheHorizon) {
  ResidencyProblem problem = Problem(1, 32, 8, 1);
  problem.phases[0].rows = {Zipf(32, 1.0, 3)};
  int64_t before = 1000;
  for (const double move_seconds : {1e-5, 1e-2, 1e-1, 10.0}) {
    problem.costs.move_seconds = move_seconds;
    const auto plan = PlanResidency(problem);
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->copies, before);
    const LayerFacts& facts = plan->layer_facts[0];
    EXPECT_GE(facts.saved_seconds, facts.spent_seconds);
    EXPECT_DOUBLE_EQ(facts.spent_seconds, plan->copies * move_seconds);
    before = plan->copies;
  }
  EXPECT_EQ(before, 0);
  problem.costs.move_seconds = 1e-5;
  problem.costs.horizon_steps = 0;
  EXPECT_EQ(PlanResidency(problem)->copies, 0);
}

// Few rows say little: how 256 of them fell is noise, the same shares of 256 000 are not.
TEST(ResidencyTest, FewRowsMoveLess) {
  std::mt19937 random(6);
  ResidencyProblem problem = Problem(1, 64, 16, 0);
  popularity::Popularity rows(64, 0);
  for (int row = 0; row < 256; ++row) rows[random() % 64] += popularity::kRow;
  EXPECT_GT(Imbalance(problem.present[0], rows), 1.3);
  problem.phases[0].rows = {rows};
  problem.costs.row_seconds = 1e-2;
  const auto few = PlanResidency(problem);
  for (int64_t& entry : rows) entry *= 1000;
  problem.phases[0].rows = {rows};
  problem.costs.row_seconds = 1e-5;  // the same seconds in all
  const auto many = PlanResidency(problem);
  ASSERT_TRUE(few.ok() && many.ok());
  EXPECT_LT(few->copies * 2, many->copies);
}

// Phases are balanced apart: even in their sum, each is uneven, and the plan helps both.
TEST(ResidencyTest, PhasesAreBalancedApart) {
  ResidencyProblem problem = Problem(1, 4, 2, 1);
  problem.phases = {{.steps = 10,
                     .rows = {{50000 * popularity::kRow, 40000 * popularity::kRow, 5000 * popularity::kRow,
                               5000 * popularity::kRow}}},
                    {.steps = 10,
                     .rows = {{5000 * popularity::kRow, 5000 * popularity::kRow, 40000 * popularity::kRow,
                               50000 * popularity::kRow}}}};
  const auto plan = PlanResidency(problem);
  ASSERT_TRUE(plan.ok());
  for (const PhaseProfile& phase : problem.phases) {
    EXPECT_GT(Imbalance(problem.present[0], phase.rows[0]), 1.7);
    EXPECT_LT(Imbalance(plan->layers[0], phase.rows[0]), 1.3);
  }
}

TEST(ResidencyTest, ExplainsMovesAndWhatDidNotMove) {
  ResidencyProblem problem = Problem(1, 4, 2, 1);
  problem.phases[0].rows = {
      {60000 * popularity::kRow, 20000 * popularity::kRow, 10000 * popularity::kRow, 10000 * popularity::kRow}};
  const auto plan = PlanResidency(problem);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(Explain(*plan, 0, 0), HasSubstr("Layer 0, expert 0 has 60.00 % of the rows (rank 1 of 4)"));
  EXPECT_THAT(Explain(*plan, 0, 0),
              HasSubstr("2 replicas on devices 0, 1. Moved (copy at device 1): the busiest device goes "
                        "from 1.6"));
  EXPECT_THAT(Explain(*plan, 0, 3), HasSubstr("Not moved"));
  problem.costs.move_seconds = 1;
  EXPECT_THAT(Explain(*PlanResidency(problem), 0, 0), HasSubstr("and cost 1e+03 ms"));
  problem.phases[0].rows = {popularity::Popularity(4, 20000 * popularity::kRow)};
  problem.costs.traffic_noise = 0;
  EXPECT_THAT(Explain(*PlanResidency(problem), 0, 2), HasSubstr("Not moved: the busiest device has 1.0"));
}

TEST(ResidencyTest, RandomProblemsGiveExecutablePlansAndTheSameOnes) {
  std::mt19937 random(8);
  for (int round = 0; round < 40; ++round) {
    const int devices = 2 + static_cast<int>(random() % 4), experts = devices * (1 + static_cast<int>(random() % 4));
    const int layers = 1 + static_cast<int>(random() % 3);
    ResidencyProblem problem = Problem(layers, experts, devices, static_cast<int>(random() % 3));
    problem.costs.move_seconds = 1e-6;
    for (int window = 0; window < 3; ++window) {
      for (popularity::Popularity& rows : problem.phases[0].rows) rows = Zipf(experts, 1.0, random());
      const auto plan = PlanResidency(problem), again = PlanResidency(problem);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectExecutable(problem, *plan);
      EXPECT_EQ(plan->layers, again->layers);
      EXPECT_EQ(plan->migrations.size(), again->migrations.size());
      problem.present = plan->layers;
    }
  }
}

TEST(ResidencyTest, WhatDoesNotFitTogetherIsNamed) {
  const ResidencyProblem good = Problem(2, 8, 2, 1);
  const auto refusal = [&](auto change) {
    ResidencyProblem problem = good;
    change(&problem);
    return std::string(PlanResidency(problem).status().message());
  };
  EXPECT_EQ(refusal([](ResidencyProblem*) {}), "");  // no row counted: nothing to do
  EXPECT_THAT(refusal([](auto* p) { p->present.clear(); }), HasSubstr("no layers"));
  EXPECT_THAT(refusal([](auto* p) { p->phases.clear(); }), HasSubstr("no profile"));
  EXPECT_THAT(refusal([](auto* p) { p->phases[0].steps = 0; }), HasSubstr("profile 0 has steps=0"));
  EXPECT_THAT(refusal([](auto* p) { p->phases[0].rows.pop_back(); }), HasSubstr("1 layers, not 2"));
  EXPECT_THAT(refusal([](auto* p) { p->phases[0].rows[1].pop_back(); }), HasSubstr("layer 1 has 7 experts, not 8"));
  EXPECT_THAT(refusal([](auto* p) { p->phases[0].rows[1][3] = -1; }), HasSubstr("layer 1, expert 3 has rows=-1"));
  EXPECT_THAT(refusal([](auto* p) { p->layer_slots = 4; }), HasSubstr("6 slots a device, not layer_slots + 1 = 5"));
  EXPECT_THAT(refusal([](auto* p) { p->present[1].slots[0] = {0, 1, 2, 3, 4, 5}; }),
              HasSubstr("layer 1, device 0 hosts 6 experts, limit 5"));
  EXPECT_THAT(refusal([](auto* p) { p->costs.move_seconds = NAN; }), HasSubstr("move_seconds=nan"));
  EXPECT_THAT(refusal([](auto* p) { p->present[1].slots.pop_back(); }), HasSubstr("layer 1 differs"));
}

TEST(NoiseCasesTest, PairsAverageToWhatWasCounted) {
  EXPECT_DOUBLE_EQ(RelativeError(0, 0.1), 1);
  EXPECT_DOUBLE_EQ(RelativeError(popularity::kRow, 0), 1);  // a single row
  EXPECT_DOUBLE_EQ(RelativeError(200 * popularity::kRow, 0), 0.1);
  const popularity::Popularity rows{700000 * popularity::kRow, 300000 * popularity::kRow, 0};
  const auto cases = DrawCases({{rows, 1.0}, {popularity::Popularity(3, 0), 5.0}}, 2, 0.06, 4, 9);
  ASSERT_EQ(cases->num_cases, 4) << "a phase without rows does not count";
  double mean = 0, spread = 0;
  for (int c = 0; c < 4; ++c) {
    EXPECT_NEAR(cases->rows[c] + cases->rows[4 + c], 2, 1e-4) << "the mean of two devices is 1";
    EXPECT_LT(cases->rows[8 + c], 1e-4);
    mean += cases->rows[c] / 4;
    spread = std::max(spread, std::abs(cases->rows[c] - 1.4));
  }
  EXPECT_NEAR(mean, 1.4, 0.01);
  EXPECT_GT(spread, 0.005);
}

TEST(NoiseCasesTest, DifferencesThatCountingExplainsAreNone) {
  const popularity::Popularity few{520 * popularity::kRow, 480 * popularity::kRow, 500 * popularity::kRow};
  const auto cases = DrawCases({{few, 1.0}}, 3, 0, 2, 9);
  for (int expert = 0; expert < 3; ++expert) {
    EXPECT_NEAR((cases->rows[expert * 2] + cases->rows[expert * 2 + 1]) / 2, 1, 0.02) << expert;
  }
}

}  // namespace
}  // namespace switchyard::placement
