// Slots that follow the plans of simulated caches, and change whom they follow.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/policies/dueling_policy.h"
#include "scheduler/offload/policies/policy_kind.h"
#include "scheduler/offload/policies/rule_policy.h"
#include "tests/lab/offload/choose_offload.h"
#include "tests/lab/offload/fewest_copies.h"
#include "tests/scheduler/offload/plan_text.h"

namespace switchyard::offload {
namespace {

constexpr int kLayers = 3, kExperts = 8, kKeys = kLayers * kExperts;
constexpr CopyCost kCost = {.copy_ticks = 80, .chunks_per_copy = 4};
constexpr int64_t kLayerTicks = 80;

std::vector<std::unique_ptr<CachePolicy>> Candidates(const OffloadShape& shape, const CopyCost& cost) {
  const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
  std::vector<std::unique_ptr<CachePolicy>> candidates;
  for (const OffloadVariant variant : kOffloadVariants)
    candidates.push_back(MakeOffloadPolicy(variant, shape, cost, popularity, {}));
  return candidates;
}

std::vector<int32_t> RandomRows(int needed, std::mt19937* random) {
  std::vector<int32_t> rows(kExperts, 0);
  for (int k = 0; k < needed; ++k) ++rows[(*random)() % kExperts];
  return rows;
}

int NumCopies(const LayerPlan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const PlanStep& step) {
    return step.kind == PlanStep::kCopy || step.kind == PlanStep::kPrefetch;
  }));
}

// Whom they follow changes at random gates between caches that prefetch, drop and run in waves.  CopyTimeline checks
// that a use finds its expert in its slot; here: that every need is used once, that a slot holds one expert and an
// expert has one slot, and that a change costs no more copies than were missing.
TEST(ShadowFollowerTest, FollowsAnyShadowFromAnyOther) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const OffloadShape shape = {kLayers, kExperts, 3 + trial % 14};
    std::vector<std::unique_ptr<CachePolicy>> candidates = Candidates(shape, kCost);
    std::vector<CopyTimeline> shadows(candidates.size(), CopyTimeline(shape, kCost));
    for (size_t i = 0; i < candidates.size(); ++i) shadows[i].Preload(candidates[i]->InitialSlots());
    size_t leader = static_cast<size_t>(trial) % candidates.size();
    ShadowFollower follower(shape, candidates[leader]->InitialSlots());
    CopyTimeline timeline(shape, kCost);
    timeline.Preload(candidates[leader]->InitialSlots());
    int copies = 0, allowed = 0;
    for (int gate = 0; gate < 40 * kLayers; ++gate) {
      if (random() % 16 == 0) {
        leader = random() % candidates.size();
        allowed += follower.NumMissing(shadows[leader].holds());
        follower.Change(shadows[leader].holds());
      }
      const std::vector<int32_t> rows = RandomRows(1 + trial % 5, &random);
      const LayerNeed need = {gate % kLayers, rows, kLayerTicks};
      std::vector<int32_t> chance(kExperts, 0);
      for (int32_t& c : chance) c = random() % 3 == 0 ? kChance * 9 / 10 : 0;
      LayerPlan followed;
      for (size_t i = 0; i < candidates.size(); ++i) {
        const LayerPlan plan = candidates[i]->OnGate(need, {LayerForecast{1, chance}});
        shadows[i].Run(plan, need);
        if (i != leader) continue;
        followed = follower.Follow(plan);
        allowed += NumCopies(plan);
      }
      copies += NumCopies(followed);
      std::vector<int32_t> used(kExperts, 0);
      for (const PlanStep& step : followed.steps) {
        if (step.kind == PlanStep::kUse) ++used[static_cast<size_t>(step.key % kExperts)];
      }
      for (size_t e = 0; e < kExperts; ++e) ASSERT_EQ(used[e], need.rows[e] > 0);
      timeline.Run(followed, need);
      ASSERT_TRUE(std::equal(follower.keys().begin(), follower.keys().end(), timeline.holds().begin()));
      std::set<ExpertKey> held;
      for (const ExpertKey key : follower.keys()) ASSERT_TRUE(key == kNoExpert || held.insert(key).second) << key;
      ASSERT_LE(copies, allowed) << "trial " << trial << " gate " << gate;
    }
  }
}

// While nobody changes, the slots are the shadow's, step for step.
TEST(ShadowFollowerTest, WithoutAChangeThePlanIsTheShadows) {
  std::mt19937 random(3);
  const OffloadShape shape = {kLayers, kExperts, 9};
  for (const std::unique_ptr<CachePolicy>& policy : Candidates(shape, kCost)) {
    ShadowFollower follower(shape, policy->InitialSlots());
    for (int gate = 0; gate < 100 * kLayers; ++gate) {
      const LayerPlan plan = policy->OnGate({gate % kLayers, RandomRows(2, &random), kLayerTicks}, {});
      ASSERT_EQ(TextOf(follower.Follow(plan)), TextOf(plan)) << policy->name();
    }
  }
}

// After a change, what the new shadow keeps is here as soon as it was used once.
TEST(ShadowFollowerTest, HoldsTheSameAfterEverythingWasUsedOnce) {
  const OffloadShape shape = {1, 4, 2};
  ShadowFollower follower(shape, std::vector<ExpertKey>{0, 1});
  follower.Change(std::vector<ExpertKey>{3, 0});
  EXPECT_EQ(follower.NumMissing(std::vector<ExpertKey>{3, 0}), 1);
  // The shadow hits 3; here it takes the slot of 1, which the shadow does not hold.
  EXPECT_EQ(TextOf(follower.Follow({{{PlanStep::kUse, 3, 0}, {PlanStep::kUse, 0, 1}}})), "copy 3>1 use 3@1 use 0@0");
  EXPECT_EQ(follower.NumMissing(std::vector<ExpertKey>{3, 0}), 0);
  // What the shadow copies and is here already is not copied: after a change back to {0, 2}.
  follower.Change(std::vector<ExpertKey>{0, 2});
  EXPECT_EQ(TextOf(follower.Follow({{{PlanStep::kCopy, 3, 1}, {PlanStep::kUse, 3, 1}}})), "use 3@1");
}

// All routings of a tiny cache, each twice, so that leads can be more than chance: no duel copies less than the
// optimum, nor more than what its two candidates copy and the changes between them.
TEST(DuelingPolicyTest, BetweenTheOptimumAndItsCandidatesOnEveryTinyRouting) {
  const OffloadShape shape = {1, 3, 2};
  const std::vector<int64_t> popularity(3, 1);
  const CopyCost cost = {8, 4};
  constexpr int kGates = 8, kTimes = 2;
  int64_t changes = 0;
  for (int routing = 0; routing < 6561; ++routing) {
    std::vector<std::unique_ptr<CachePolicy>> candidates;
    for (const OffloadKind kind : {OffloadKind::kLru, OffloadKind::kLfu}) {
      candidates.push_back(MakeCachePolicy(kind, {.shape = shape, .cost = cost, .popularity = popularity}));
    }
    DuelingPolicy duel(shape, cost, std::move(candidates), 0);
    uint32_t held = 0;
    for (const ExpertKey key : duel.InitialSlots()) held |= 1u << key;
    const auto lru = MakeCachePolicy(OffloadKind::kLru, {.shape = shape, .cost = cost, .popularity = popularity});
    const auto lfu = MakeCachePolicy(OffloadKind::kLfu, {.shape = shape, .cost = cost, .popularity = popularity});
    NeedSequence needs;
    int copies = 0, of_lru = 0, of_lfu = 0;
    for (int gate = 0, rest = routing; gate < kGates * kTimes; ++gate, rest /= 3) {
      if (gate % kGates == 0) rest = routing;
      std::vector<int32_t> rows(3, 0);
      rows[static_cast<size_t>(rest % 3)] = 1;
      needs.push_back({rest % 3});
      const LayerNeed need = {0, rows, 4};
      copies += NumCopies(duel.OnGate(need, {}));
      of_lru += NumCopies(lru->OnGate(need, {}));
      of_lfu += NumCopies(lfu->OnGate(need, {}));
    }
    changes += duel.num_changes();
    ASSERT_GE(copies, FewestCopies(needs, held, 3)) << routing;
    ASSERT_LE(copies, std::max(of_lru, of_lfu) + shape.num_slots * duel.num_changes()) << routing;
  }
  EXPECT_GT(changes, 0);
}

// Slots are changed for a lead of more than the copies that it takes, by more than chance makes leads, and for no less:
// on all routings of a tiny cache.
TEST(DuelingPolicyTest, AChangeIsBoughtWhenItHasBeenPaidFor) {
  const OffloadShape shape = {1, 5, 4};
  const std::vector<int64_t> popularity = {9, 9, 2, 2, 1};
  const CopyCost cost = {8, 4};
  const auto make = [&](OffloadKind kind) {
    return MakeCachePolicy(kind, {.shape = shape, .cost = cost, .popularity = popularity});
  };
  int64_t num_changed = 0, num_waited = 0;
  for (int routing = 0; routing < 15625; ++routing) {
    std::vector<std::unique_ptr<CachePolicy>> candidates;
    for (const OffloadKind kind : {OffloadKind::kLru, OffloadKind::kStatic}) candidates.push_back(make(kind));
    DuelingPolicy duel(shape, cost, std::move(candidates), 0);
    const std::unique_ptr<CachePolicy> lru = make(OffloadKind::kLru), fixed = make(OffloadKind::kStatic);
    CopyTimeline of_lru(shape, cost), of_fixed(shape, cost);
    of_lru.Preload(lru->InitialSlots());
    of_fixed.Preload(fixed->InitialSlots());
    int64_t lead = 0, squares = 0;
    for (int gate = 0, rest = routing; gate < 6 && duel.num_changes() == 0; ++gate, rest /= 5) {
      const int64_t missing = std::count_if(of_fixed.holds().begin(), of_fixed.holds().end(), [&](ExpertKey key) {
        return std::find(of_lru.holds().begin(), of_lru.holds().end(), key) == of_lru.holds().end();
      });
      std::vector<int32_t> rows(5, 0);
      rows[static_cast<size_t>(rest % 5)] = 1;
      const LayerNeed need = {0, rows, 4};
      duel.OnGate(need, {});
      const int64_t over = (lead - missing * cost.copy_ticks) / 2;  // chunks
      ASSERT_EQ(duel.num_changes(), over > 0 && over * over > squares) << routing << " gate " << gate << ": " << lead;
      num_changed += duel.num_changes();
      num_waited += lead > 0 && duel.num_changes() == 0;
      const int64_t lru_ticks = of_lru.Run(lru->OnGate(need, {}), need);
      const int64_t gain = lru_ticks - of_fixed.Run(fixed->OnGate(need, {}), need);
      lead = std::max(-4 * cost.copy_ticks, lead + gain);
      squares += gain / 2 * (gain / 2);
    }
  }
  EXPECT_GT(num_changed, 0);
  EXPECT_GT(num_waited, 0);
}

// At first two experts of each layer are needed in most gates, others now and then; later two others every 16 passes.
std::vector<LayerNeed> TwoKindsOfTraffic(std::vector<std::vector<int32_t>>* rows) {
  std::mt19937 random(4);
  for (int gate = 0; gate < 2 * 600 * kLayers; ++gate) {
    const bool late = gate >= 600 * kLayers;
    std::vector<int32_t> of_gate(kExperts, 0);
    of_gate[late                ? (gate / kLayers / 16 + random() % 2) % kExperts
            : random() % 10 < 9 ? random() % 2
                                : random() % 8] = 1;
    rows->push_back(std::move(of_gate));
  }
  std::vector<LayerNeed> needs;
  for (size_t gate = 0; gate < rows->size(); ++gate)
    needs.push_back({static_cast<int>(gate % kLayers), (*rows)[gate], kLayerTicks});
  return needs;
}

TEST(DuelingPolicyTest, FollowsTrafficThatChanges) {
  const OffloadShape shape = {kLayers, kExperts, 6};
  const CopyCost cost = {800, 4};
  const std::vector<int64_t> popularity(kKeys, 1);
  std::vector<std::vector<int32_t>> rows;
  const std::vector<LayerNeed> needs = TwoKindsOfTraffic(&rows);
  const auto make = [&](OffloadKind kind) {
    return MakeCachePolicy(kind, {.shape = shape, .cost = cost, .popularity = popularity});
  };
  std::vector<std::unique_ptr<CachePolicy>> candidates;
  for (const OffloadKind kind : {OffloadKind::kLfu, OffloadKind::kLru}) candidates.push_back(make(kind));
  DuelingPolicy duel(shape, cost, std::move(candidates), 0);
  const std::unique_ptr<CachePolicy> lfu = make(OffloadKind::kLfu), lru = make(OffloadKind::kLru);
  CopyTimeline of_duel(shape, cost), of_lfu(shape, cost), of_lru(shape, cost);
  of_duel.Preload(duel.InitialSlots());
  of_lfu.Preload(lfu->InitialSlots());
  of_lru.Preload(lru->InitialSlots());
  int64_t duel_ticks = 0, lfu_ticks = 0, lru_ticks = 0;
  for (size_t gate = 0; gate < needs.size(); ++gate) {
    if (gate == needs.size() / 2) {
      EXPECT_EQ(duel.leader().name(), "lfu");
    }
    duel_ticks += of_duel.Run(duel.OnGate(needs[gate], {}), needs[gate]);
    lfu_ticks += of_lfu.Run(lfu->OnGate(needs[gate], {}), needs[gate]);
    lru_ticks += of_lru.Run(lru->OnGate(needs[gate], {}), needs[gate]);
  }
  EXPECT_EQ(duel.leader().name(), "lru");
  EXPECT_LT(duel_ticks, std::min(lfu_ticks, lru_ticks)) << lfu_ticks << " " << lru_ticks;
  EXPECT_LT(duel.num_changes(), 20);
}

// The same needs, the same plans: on another machine, and in a second policy.
TEST(DuelingPolicyTest, IsAFunctionOfWhatItIsReported) {
  const OffloadShape shape = {kLayers, kExperts, 9};
  DuelingPolicy a(shape, kCost, Candidates(shape, kCost), 2), b(shape, kCost, Candidates(shape, kCost), 2);
  std::mt19937 random(8);
  for (int gate = 0; gate < 300 * kLayers; ++gate) {
    const std::vector<int32_t> rows = RandomRows(3, &random);
    const LayerNeed need = {gate % kLayers, rows, kLayerTicks};
    ASSERT_TRUE(a.OnGate(need, {}) == b.OnGate(need, {}));
  }
  EXPECT_EQ(a.num_changes(), b.num_changes());
}

}  // namespace
}  // namespace switchyard::offload
