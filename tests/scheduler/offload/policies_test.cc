// The policies over routing that is made here: what a policy promises, whatever it is asked.
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "tests/lab/offload/forecast_calibration.h"
#include "tests/lab/offload/offload_sim.h"
#include "tests/lab/offload/rule_policy.h"
#include "tests/scheduler/offload/plan_text.h"

namespace switchyard::offload {
namespace {

// Each pass each layer needs `needed` experts; forecasts are right at `right` of them.
OffloadWorkload RandomWorkload(int layers, int experts, int needed, double right, int passes, uint32_t seed) {
  std::mt19937 random(seed);
  OffloadWorkload workload = {layers, experts, passes, {}};
  for (int i = 0; i < passes * layers; ++i) {
    OffloadStep step = {i % layers, std::vector<int32_t>(experts, 0), std::vector<std::vector<int32_t>>(2)};
    for (int k = 0; k < needed; ++k) ++step.rows[std::min(random() % experts, random() % experts)];
    workload.steps.push_back(std::move(step));
  }
  for (int i = 0; i + 1 < passes * layers; ++i) {
    for (int e = 0; e < experts; ++e) {
      const bool is = (workload.steps[i + 1].rows[e] > 0) == (random() % 1000 < right * 1000);
      workload.steps[i].forecast[0].push_back(is ? kChance * 9 / 10 : kChance / 20);
    }
  }
  return workload;
}

std::vector<std::unique_ptr<CachePolicy>> Policies(const OffloadShape& shape, const CopyCost& cost,
                                                   const NeedSequence* needs) {
  const std::vector<int64_t> popularity(shape.num_keys(), 1);
  std::vector<std::unique_ptr<CachePolicy>> policies;
  policies.push_back(std::make_unique<ExpectedUsePolicy>(shape, cost, ExpectedUsePolicy::Options(), popularity));
  const bool per_layer = shape.num_slots >= shape.num_layers;
  policies.push_back(std::make_unique<LruPolicy>(shape, per_layer, popularity));
  for (const auto rule : {RulePolicy::Rule::kLfu, RulePolicy::Rule::kStatic}) {
    policies.push_back(std::make_unique<RulePolicy>(shape, RulePolicy::Options{rule, per_layer}, popularity));
  }
  for (const bool prefetch : {false, true}) {
    for (const bool wait : {false, true}) {
      const BeladyPolicy::Options options = {prefetch, false, wait};
      policies.push_back(std::make_unique<BeladyPolicy>(shape, cost, options, needs, popularity));
    }
  }
  return policies;
}

// CopyTimeline checks that every use finds its expert; here: each needed expert is used once, nothing else is.
TEST(CachePoliciesTest, EveryNeedIsUsedOnceAtAnyBudgetAndSpeed) {
  for (const int slots : {3, 5, 9, 24}) {
    for (const int64_t copy : {8, 80, 800}) {
      const OffloadWorkload workload = RandomWorkload(3, 8, 1 + slots % 7, 0.8, 60, 7 + slots);
      const NeedSequence needs = workload.Needs();
      const CopyCost cost = {copy, 4};
      for (const auto& policy : Policies({3, 8, slots}, cost, &needs)) {
        CopyTimeline timeline({3, 8, slots}, cost);
        timeline.Preload(policy->InitialSlots());
        for (const OffloadStep& step : workload.steps) {
          const LayerNeed need = {step.layer, step.rows, 80};
          std::vector<LayerForecast> forecasts;
          if (!step.forecast[0].empty()) forecasts.push_back({1, step.forecast[0]});
          if (step.layer == 0 && !forecasts.empty()) {  // another's forecast, which may be as wrong
            timeline.Run(policy->OnPass(forecasts, 20), {.rows = {}, .compute_ticks = 20});
          }
          const LayerPlan plan = policy->OnGate(need, forecasts);
          std::vector<int32_t> used(8, 0);
          for (const PlanStep& s : plan.steps) {
            if (s.kind != PlanStep::kUse) continue;
            ASSERT_EQ(s.key / 8, step.layer);
            ++used[s.key % 8];
          }
          for (int e = 0; e < 8; ++e) ASSERT_EQ(used[e], step.rows[e] > 0) << policy->name() << " expert " << e;
          ASSERT_GE(timeline.Run(plan, need), 80) << policy->name();
        }
      }
    }
  }
}

TEST(CachePoliciesTest, AllResidentCopiesNothing) {
  const OffloadWorkload workload = RandomWorkload(3, 8, 4, 0.8, 20, 1);
  const NeedSequence needs = workload.Needs();
  for (const auto& policy : Policies({3, 8, 24}, {80, 4}, &needs)) {
    const OffloadResult result = RunOffload(workload, {24, {80, 4}, 80, 0}, policy.get());
    EXPECT_EQ(result.ticks, result.resident_ticks) << policy->name();
    EXPECT_EQ(result.counts.link_ticks, 0) << policy->name();
  }
}

// Decisions are the same on a machine that copies ten times slower than believed: only the time differs.
TEST(CachePoliciesTest, DecisionsDoNotDependOnTheMachine) {
  const OffloadWorkload workload = RandomWorkload(3, 8, 3, 0.8, 100, 2);
  const std::vector<int64_t> popularity(24, 1);
  int64_t copies[2], ticks[2];
  for (const int slow : {0, 1}) {
    ExpectedUsePolicy policy({3, 8, 8}, {80, 4}, {}, popularity);
    const OffloadResult result = RunOffload(workload, {8, {slow ? 800 : 80, 4}, 80, 0}, &policy);
    copies[slow] = result.counts.copies;
    ticks[slow] = result.ticks;
  }
  EXPECT_EQ(copies[0], copies[1]);
  EXPECT_GT(ticks[1], ticks[0]);
}

// Counts that grow for years stay counts: the expert with by far the most rows is never copied again.
TEST(CachePoliciesTest, RowsOfLongTrafficDoNotOverflow) {
  const OffloadShape shape = {1, 4, 3};
  RulePolicy policy(shape, {RulePolicy::Rule::kLfu, true}, {1, 1, 1, 1});
  for (int step = 0; step < 20000; ++step) {
    std::vector<int32_t> rows(4, 0);
    rows[0] = step % 2 == 0 ? 1 << 20 : 0;
    rows[1 + step % 3] = 1;
    const LayerPlan plan = policy.OnGate({.layer = 0, .rows = rows}, {});
    for (const PlanStep& copy : plan.steps) {
      ASSERT_FALSE(copy.kind == PlanStep::Kind::kCopy && copy.key == 0) << "step " << step;
    }
  }
}

// A budget beside a placement may count replicas that the shape does not know as experts.
TEST(CachePoliciesTest, MoreSlotsThanExperts) {
  const OffloadShape shape = {2, 4, 11};
  const OffloadWorkload workload = RandomWorkload(2, 4, 2, 0.8, 6, 3);
  const NeedSequence needs = workload.Needs();
  for (const auto& policy : Policies(shape, {80, 4}, &needs)) {
    const std::vector<ExpertKey> initial = policy->InitialSlots();
    ASSERT_EQ(initial.size(), 11u) << policy->name();
    EXPECT_EQ(std::count(initial.begin(), initial.end(), kNoExpert), 3) << policy->name();
    for (const OffloadStep& need : workload.steps) {
      const LayerPlan plan = policy->OnGate({.layer = need.layer, .rows = need.rows, .compute_ticks = 80}, {});
      for (const PlanStep& step : plan.steps) EXPECT_EQ(step.kind, PlanStep::kUse) << policy->name();
    }
  }
}

// The same forecast pays where the copy is over by the next gate, and not where a tenth of it is: being wrong costs
// what gives way.
TEST(ExpectedUsePolicyTest, PrefetchesOnlyWhatPays) {
  const std::vector<int64_t> popularity(24, 1);
  for (const int64_t copy : {80, 800}) {
    ExpectedUsePolicy policy({3, 8, 8}, {copy, 4}, {}, popularity);
    const std::vector<int32_t> rows = {1, 0, 0, 0, 0, 0, 0, 0};
    std::vector<int32_t> chance(8, 0);
    chance[6] = kChance * 6 / 10;
    const LayerPlan plan = policy.OnGate({0, rows, 80}, {LayerForecast{1, chance}});
    int of_14 = 0;
    for (const PlanStep& step : plan.steps) of_14 += step.kind == PlanStep::kPrefetch && step.key == 14;
    EXPECT_EQ(of_14, copy == 80) << TextOf(plan);
  }
}

// What a pass' tokens say of its first layer is on the way before that layer's gate, and there if there was time.
TEST(ExpectedUsePolicyTest, APassThatIsForetoldFindsItsFirstExperts) {
  const OffloadShape shape = {2, 4, 4};
  const std::vector<int64_t> popularity(8, 1);
  const CopyCost cost = {80, 4};
  ExpectedUsePolicy policy(shape, cost, {}, popularity);
  CopyTimeline timeline(shape, cost);
  timeline.Preload(policy.InitialSlots());
  const auto gate = [&](int layer, const std::vector<int32_t>& rows) {
    const LayerNeed need = {layer, rows, 80};
    timeline.Run(policy.OnGate(need, {}), need);
  };
  gate(0, {1, 0, 0, 0});
  gate(1, {0, 1, 1, 1});
  int32_t missing = 0;
  while (std::count(timeline.holds().begin(), timeline.holds().end(), missing) > 0) ++missing;
  ASSERT_LT(missing, shape.num_experts);
  for (const bool likely : {false, true}) {
    std::vector<int32_t> chance(4, 0);
    if (likely) chance[static_cast<size_t>(missing)] = kChance * 95 / 100;
    const LayerPlan plan = policy.OnPass({LayerForecast{1, chance}}, 100);
    EXPECT_EQ(std::count_if(plan.steps.begin(), plan.steps.end(),
                            [&](const PlanStep& s) { return s.kind == PlanStep::kPrefetch && s.key == missing; }),
              likely);
    timeline.Run(plan, {.rows = {}, .compute_ticks = 100});
  }
  const int64_t hits = timeline.counts().hits;
  std::vector<int32_t> rows(4, 0);
  rows[static_cast<size_t>(missing)] = 1;
  gate(0, rows);
  EXPECT_EQ(timeline.counts().hits, hits + 1);
}

TEST(ExpectedUsePolicyTest, GoodForecastsMakeItFasterThanDemandCopies) {
  const OffloadWorkload workload = RandomWorkload(4, 16, 2, 0.98, 400, 3);
  const std::vector<int64_t> popularity(64, 1);
  const OffloadRun run = {16, {800, 16}, 800, 200};
  ExpectedUsePolicy ours({4, 16, 16}, run.cost, {}, popularity);
  LruPolicy lru({4, 16, 16}, true, popularity);
  EXPECT_LT(RunOffload(workload, run, &ours).ticks * 10, RunOffload(workload, run, &lru).ticks * 9);
}

// What follows what is learned: tokens take paths, and the past alone says most of the next layer.
TEST(ExpectedUsePolicyTest, LearnsPathsWithoutForecasts) {
  std::mt19937 random(9);
  OffloadWorkload workload = {4, 16, 2000, {}};
  uint32_t path = 0;
  for (int i = 0; i < 2000 * 4; ++i) {
    if (i % 4 == 0) path = random() % 16;
    OffloadStep step = {i % 4, std::vector<int32_t>(16, 0), std::vector<std::vector<int32_t>>(2)};
    step.rows[(path * 5 + static_cast<uint32_t>(i % 4) * 3) % 16] = 1;
    workload.steps.push_back(std::move(step));
  }
  const std::vector<int64_t> popularity(64, 1);
  const OffloadRun run = {16, {800, 16}, 800, 4000};
  ExpectedUsePolicy ours({4, 16, 16, 1}, run.cost, {}, popularity);
  LruPolicy lru({4, 16, 16, 1}, true, popularity);
  EXPECT_LT(RunOffload(workload, run, &ours).ticks * 10, RunOffload(workload, run, &lru).ticks * 8);
}

TEST(BeladyPolicyTest, DemandOnlyHasTheFewestCopies) {
  const OffloadWorkload workload = RandomWorkload(2, 6, 1, 1, 40, 4);
  const NeedSequence needs = workload.Needs();
  const std::vector<int64_t> popularity(12, 1);
  BeladyPolicy belady({2, 6, 4}, {80, 4}, {}, &needs, popularity);
  LruPolicy lru({2, 6, 4}, false, popularity);
  RulePolicy lfu({2, 6, 4}, {RulePolicy::Rule::kLfu, false}, popularity);
  const OffloadRun run = {4, {80, 4}, 80, 0};
  const int64_t fewest = RunOffload(workload, run, &belady).counts.copies;
  EXPECT_LT(fewest, RunOffload(workload, run, &lru).counts.copies);
  EXPECT_LT(fewest, RunOffload(workload, run, &lfu).counts.copies);
}

TEST(ForecastCalibrationTest, PlacesBecomeWhatTheyTurnedOutToBe) {
  ForecastCalibration calibration(2, 4, 1);
  calibration.Count(std::vector<int64_t>{9000, 500}, 10000);
  EXPECT_NEAR(calibration.PlaceChance(0), 0.9 * kChance, 0.01 * kChance);
  std::vector<int32_t> named = {1, 0, 0, 0, 0, 1, 0, 0};
  std::vector<int64_t> rows(4);
  constexpr int64_t kRow = int64_t{1} << 20;
  calibration.ExpectedRows(named, 1, absl::MakeSpan(rows));
  EXPECT_NEAR(rows[0], 0.9 * kRow, 0.01 * kRow);
  EXPECT_NEAR(rows[1], 0.05 * kRow, 0.01 * kRow);
  EXPECT_NEAR(rows[2], 0.025 * kRow, 0.01 * kRow);
  // Two tokens that both name expert 0 first, and one that names another.
  named = {2, 0, 1, 0, 0, 3, 0, 0};
  calibration.ExpectedRows(named, 3, absl::MakeSpan(rows));
  EXPECT_NEAR(rows[0], 1.825 * kRow, 0.01 * kRow);
  EXPECT_NEAR(rows[1], 0.15 * kRow, 0.01 * kRow);
}

}  // namespace
}  // namespace switchyard::offload
