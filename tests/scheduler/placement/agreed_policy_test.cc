// Which copies an estimate is worth: with hedges, without, or none.
#include "scheduler/placement/per_step/agreed_policy.h"

#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/placement/route/min_max.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

constexpr int kExperts = 16, kDevices = 8;

// What the policy prefetches for layer 1, and what it could have.
struct Tried {
  SlotPlan plan;
  std::vector<SlotChange> hedged, needed;  // changes with hedges, and those alone that the mean needs
  bool needed_helps = false;
};

Tried Try(const popularity::Popularity& estimate, const LayerCosts& costs) {
  AgreedPolicy policy({.top_k = 2, .residents = {2, ContiguousPlacement(kExperts, kDevices, 2)}, .costs = costs});
  const Placement present = policy.table(1).placement();
  const Placement& residents = policy.shape().residents[1];
  const Placement hedged = FillEmptySlots(residents, present, {.estimate = estimate, .error = policy.error(1)});
  const Placement needed =
      FillEmptySlots(residents, present, {.estimate = estimate, .error = policy.error(1), .hedge = false});
  const auto busiest = [&](const Placement& placement) {
    return MinimizeBusiest(ReplicaIndex(placement), estimate).busiest;
  };
  Tried tried;
  tried.hedged = ChangesBetween(present, hedged);
  tried.needed = ChangesBetween(present, needed);
  tried.needed_helps = busiest(needed) < busiest(present);
  const std::vector<int32_t> rows(kDevices * kExperts, 5);
  const LayerEstimate reported{.layer = 1, .popularity = estimate};
  tried.plan = policy
                   .Decide({.layer = 0,
                            .counts = {.num_ranks = kDevices, .num_experts = kExperts, .rows = rows},
                            .estimates = {&reported, 1}})
                   .prefetch[0];
  return tried;
}

// One copy hides behind the layer before; of two one delays by more than any move saves.
constexpr LayerCosts kOneHides{.copy_ps = int64_t{1} << 40, .row_ps = 1000, .layer_ps = int64_t{1} << 40};

TEST(AgreedPolicyTest, WhereHedgesDelayWhatTheMeanNeedsMovesAlone) {
  std::mt19937_64 rng(1);
  int moved_alone = 0;
  for (int round = 0; round < 300; ++round) {
    const Tried tried = Try(popularity::FromCounts(placement_drill::ZipfRows(rng, kExperts, 1.0, 2000)), kOneHides);
    if (tried.plan.choice.reason == MoveReason::kEvenEnough) continue;
    if (MostCopies(tried.hedged) < 2 || MostCopies(tried.needed) != 1 || !tried.needed_helps) continue;
    EXPECT_EQ(tried.plan.choice.reason, MoveReason::kPays) << tried.plan.choice.saved_ps;
    EXPECT_EQ(tried.plan.choice.delayed_ps, 0);
    EXPECT_EQ(tried.plan.changes, tried.needed);
    ++moved_alone;
  }
  EXPECT_GT(moved_alone, 20);
}

TEST(AgreedPolicyTest, WhereNothingDelaysHedgesMove) {
  std::mt19937_64 rng(1);
  int hedges = 0;
  for (int round = 0; round < 50; ++round) {
    const Tried tried = Try(popularity::FromCounts(placement_drill::ZipfRows(rng, kExperts, 1.0, 2000)),
                            {.copy_ps = 1000, .row_ps = 1000, .layer_ps = 1'000'000});
    if (!tried.plan.choice.Moves()) continue;
    EXPECT_EQ(tried.plan.changes, tried.hedged);
    hedges += tried.hedged != tried.needed;
  }
  EXPECT_GT(hedges, 20);
}

}  // namespace
}  // namespace switchyard::placement
