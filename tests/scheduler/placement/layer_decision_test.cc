#include "scheduler/placement/per_step/layer_decision.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/lina/paper_allocation.h"
#include "scheduler/placement/route/layer_time.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::ZipfRows;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kExperts = 16, kDevices = 8, kLayers = 3;

PolicyShape ShapeOf(PlacementMode mode, const LayerCosts& costs) {
  return {.mode = mode,
          .top_k = 2,
          .residents = std::vector<Placement>(kLayers, ContiguousPlacement(kExperts, kDevices, 2)),
          .costs = costs};
}

constexpr LayerCosts kCheapCopies{.copy_ps = 1, .row_ps = 1000};

std::unique_ptr<PlacementPolicy> Make(PlacementMode mode, const LayerCosts& costs = kCheapCopies) {
  absl::StatusOr<std::unique_ptr<PlacementPolicy>> policy = MakePlacementPolicy(ShapeOf(mode, costs));
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

// A batch whose popularity wanders from step to step, and the estimate of the next layer.
class Routing {
 public:
  explicit Routing(uint64_t seed) : rng_(seed) {
    for (int layer = 0; layer < kLayers; ++layer) Next(layer);
  }

  // What comes in this layer next; Counts says it.
  void Next(int layer) {
    counts_[layer].assign(kDevices * kExperts, 0);
    const std::vector<int64_t> rows = placement_drill::ZipfRows(rng_, kExperts, 1.0, 2000);
    for (int e = 0; e < kExperts; ++e) {
      for (int64_t row = 0; row < rows[e]; ++row) ++counts_[layer][rng_() % kDevices * kExperts + e];
    }
  }
  RowCounts Counts(int layer) const { return {.num_ranks = kDevices, .num_experts = kExperts, .rows = counts_[layer]}; }
  // The true rows, but for every third expert, which is off by up to a third.
  popularity::Popularity Estimate(int layer) {
    popularity::Popularity estimate = popularity::FromCounts(Counts(layer).OfExperts());
    for (int e = 0; e < kExperts; e += 3) estimate[e] = estimate[e] * static_cast<int64_t>(67 + rng_() % 67) / 100;
    return estimate;
  }

 private:
  std::mt19937_64 rng_;
  std::vector<int32_t> counts_[kLayers];
};

struct Reported {
  LayerDecision decision;
  popularity::Popularity estimate;
};

Reported Step(PlacementPolicy& policy, Routing& routing, int64_t step, int layer) {
  const int next = (layer + 1) % kLayers;
  routing.Next(next);
  Reported reported;
  reported.estimate = routing.Estimate(next);
  const LayerEstimate estimate{.layer = next, .popularity = reported.estimate};
  reported.decision = policy.Decide(
      {.step = step, .layer = layer, .counts = routing.Counts(layer), .estimates = absl::MakeConstSpan(&estimate, 1)});
  return reported;
}

class EveryModeTest : public testing::TestWithParam<PlacementMode> {};

// Every expert hosted, no expert twice on a device, capacity held, every row with a replica, all ranks the same.
TEST_P(EveryModeTest, KeepsTheRulesAndAllRanksAgree) {
  std::vector<std::unique_ptr<PlacementPolicy>> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(Make(GetParam()));
  std::vector<Routing> routings(4, Routing(1));
  for (int64_t step = 0; step < 30; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerDecision first = Step(*ranks[0], routings[0], step, layer).decision;
      for (int rank = 1; rank < 4; ++rank) {
        const LayerDecision other = Step(*ranks[rank], routings[rank], step, layer).decision;
        ASSERT_EQ(DescribeMismatch(first.digest, 0, other.digest, rank), "");
        ASSERT_EQ(first.digest.hash(), other.digest.hash());
        ASSERT_EQ(first.split, other.split);
        ASSERT_EQ(first.demand.changes, other.demand.changes);
        ASSERT_EQ(first.awaited, other.awaited);
      }
      for (int l = 0; l < kLayers; ++l) {
        const Placement& placement = ranks[0]->table(l).placement();
        ASSERT_TRUE(CheckPlacement(placement).ok()) << placement.ToString();
        for (const auto& device : placement.slots) ASSERT_EQ(device.size(), 4u);
      }
      const RowCounts counts = routings[0].Counts(layer);
      for (int rank = 0; rank < kDevices; ++rank) {
        for (int e = 0; e < kExperts; ++e) {
          int32_t rows = 0;
          for (const SplitPiece& piece : first.split.Pieces(rank, e)) {
            ASSERT_TRUE(ranks[0]->table(layer).placement().Holds(piece.device, e));
            rows += piece.rows;
          }
          ASSERT_EQ(rows, counts.At(rank, e));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EveryModeTest,
                         testing::Values(PlacementMode::kStatic, PlacementMode::kStaticSpare, PlacementMode::kLina,
                                         PlacementMode::kAgreed, PlacementMode::kIdeal, PlacementMode::kNoEstimate,
                                         PlacementMode::kNoFinetune),
                         [](const auto& info) {
                           std::string name(NameOf(info.param));
                           for (char& c : name) c = c == '+' ? '_' : c;
                           return name;
                         });

// Mean of busiest over the mean device.
double Imbalance(PlacementMode mode, const LayerCosts& costs = kCheapCopies) {
  const std::unique_ptr<PlacementPolicy> policy = Make(mode, costs);
  Routing routing(2);
  double sum = 0;
  int num = 0;
  for (int64_t step = 0; step < 40; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const RowCounts counts = routing.Counts(layer);
      const auto total = static_cast<double>(popularity::TotalOf(counts.OfExperts()));
      const LayerDecision decision = Step(*policy, routing, step, layer).decision;
      sum += static_cast<double>(decision.split.busiest()) * kDevices / total;
      ++num;
    }
  }
  return sum / num;
}

TEST(LayerDecisionTest, ModesAreOrderedAsTheyShould) {
  EXPECT_GT(Imbalance(PlacementMode::kStatic), 2.0);
  EXPECT_LT(Imbalance(PlacementMode::kStaticSpare), 1.5);
  EXPECT_LT(Imbalance(PlacementMode::kLina), 1.6);
  EXPECT_LT(Imbalance(PlacementMode::kNoEstimate), 1.6);
  EXPECT_LE(Imbalance(PlacementMode::kAgreed), 1.02);
  // Copies that cannot pay leave what the group began with.
  EXPECT_EQ(Imbalance(PlacementMode::kAgreed, {.copy_ps = int64_t{1} << 50, .row_ps = 1}),
            Imbalance(PlacementMode::kStaticSpare));
}

TEST(LayerDecisionTest, WeightsMoveOnlyWhereItPays) {
  // Nothing was estimated and expert 0 takes all 800 rows: 267 a replica, until the other five devices copy it, too.
  std::vector<int32_t> rows(kDevices * kExperts, 0);
  for (int rank = 0; rank < kDevices; ++rank) rows[rank * kExperts] = 100;
  const RowCounts counts{.num_ranks = kDevices, .num_experts = kExperts, .rows = rows};
  // A copy costs as much as 150 rows, and 167 are saved.
  const std::unique_ptr<PlacementPolicy> policy = Make(PlacementMode::kAgreed, {.copy_ps = 150'000, .row_ps = 1000});
  const LayerDecision first = policy->Decide({.layer = 0, .counts = counts, .estimates = {}});
  EXPECT_EQ(first.demand.choice.reason, MoveReason::kPays);
  EXPECT_THAT(first.demand.changes, SizeIs(5));
  EXPECT_EQ(first.split.busiest(), 100);
  EXPECT_THAT(first.awaited, SizeIs(5));  // all of them wait for it
  const LayerDecision second = policy->Decide({.layer = 0, .counts = counts, .estimates = {}});
  EXPECT_EQ(second.demand.choice.reason, MoveReason::kEvenEnough);
  EXPECT_THAT(second.awaited, IsEmpty());
  const std::unique_ptr<PlacementPolicy> dear = Make(PlacementMode::kAgreed, {.copy_ps = 170'000, .row_ps = 1000});
  const LayerDecision stays = dear->Decide({.layer = 0, .counts = counts, .estimates = {}});
  EXPECT_EQ(stays.demand.choice.reason, MoveReason::kTooDear);
  EXPECT_THAT(stays.demand.changes, IsEmpty());
  EXPECT_EQ(stays.split.busiest(), 267);
}

TEST(LayerDecisionTest, WhatDoesNotPayDoesNotMove) {
  int moved = 0, stayed = 0;
  Routing routing(4);
  for (int round = 0; round < 600; ++round) {
    routing.Next(0);
    const int64_t copy_ps = 1000 * (round % 150);
    const LayerCosts costs{.copy_ps = copy_ps, .row_ps = 1000}, dear{.copy_ps = int64_t{1} << 45, .row_ps = 1000};
    const LayerInputs inputs{.layer = 0, .counts = routing.Counts(0), .estimates = {}};
    const LayerDecision decision = Make(PlacementMode::kAgreed, costs)->Decide(inputs);
    const SplitTable stays = Make(PlacementMode::kAgreed, dear)->Decide(inputs).split;
    const bool pays = decision.demand.choice.reason == MoveReason::kPays;
    EXPECT_EQ(pays, !decision.demand.changes.empty());
    const int64_t time = LayerTime(decision.split, costs, decision.demand.changes), before = LayerTime(stays, costs);
    EXPECT_TRUE(pays ? time < before : time == before) << time << " for " << before;
    ++(pays ? moved : stayed);
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(stayed, 0);
}

// The paper's phase 1 places the next layer; estimates of later ones change nothing.
TEST(LayerDecisionTest, ThePaperLooksOneLayerAhead) {
  for (const PlacementMode mode : {PlacementMode::kLina, PlacementMode::kNoFinetune}) {
    const std::unique_ptr<PlacementPolicy> policy = Make(mode);
    const std::vector<int32_t> rows(kDevices * kExperts, 1);
    popularity::Popularity hot(kExperts, popularity::kRow);
    hot[5] = 400 * popularity::kRow;
    const LayerEstimate reported[] = {{.layer = 1, .popularity = hot}, {.layer = 2, .popularity = hot}};
    const LayerDecision decision = policy->Decide(
        {.counts = {.num_ranks = kDevices, .num_experts = kExperts, .rows = rows}, .estimates = reported});
    ASSERT_THAT(decision.prefetch, SizeIs(1));
    EXPECT_EQ(decision.prefetch[0].layer, 1);
    EXPECT_THAT(decision.prefetch[0].changes, SizeIs(Gt(0)));
    EXPECT_EQ(policy->table(2).placement(), ContiguousPlacement(kExperts, kDevices, 2));
  }
}

TEST(LayerDecisionTest, ResidentsStayWhereTheyAre) {
  const std::unique_ptr<PlacementPolicy> policy = Make(PlacementMode::kAgreed);
  Routing routing(3);
  size_t moved = 0;
  for (int64_t step = 0; step < 20; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerDecision decision = Step(*policy, routing, step, layer).decision;
      EXPECT_THAT(decision.prefetch, SizeIs(1)) << "an estimate of the next layer, by which nothing moves";
      EXPECT_THAT(decision.prefetch[0].changes, IsEmpty());
      for (const SlotChange& change : decision.demand.changes) EXPECT_GE(change.slot, 2);
      moved += decision.demand.changes.size();
    }
  }
  EXPECT_GT(moved, 0U);
}

TEST(LayerDecisionTest, PhaseTwoOfThePaper) {
  const std::unique_ptr<PlacementPolicy> policy = Make(PlacementMode::kLina);
  popularity::Popularity estimate(kExperts, 0);
  estimate[0] = estimate[1] = estimate[2] = estimate[3] = 100 * popularity::kRow;
  const LayerEstimate reported{.layer = 1, .popularity = estimate};
  std::vector<int32_t> rows(kDevices * kExperts, 0);
  for (int e = 0; e < 4; ++e) rows[e] = 90 + e;
  const RowCounts held{.num_ranks = kDevices, .num_experts = kExperts, .rows = rows};
  const LayerInputs first{.layer = 0, .counts = held, .estimates = absl::MakeConstSpan(&reported, 1)};
  const LayerInputs second{.layer = 1, .counts = held, .estimates = {}};
  EXPECT_THAT(policy->Decide(first).demand.changes, IsEmpty());   // no estimate of layer 0: nothing to compare
  EXPECT_THAT(policy->Decide(second).demand.changes, IsEmpty());  // the same four
  policy->Decide(first);
  rows[3] = 0;
  rows[4] = 93;
  const RowCounts broke{.num_ranks = kDevices, .num_experts = kExperts, .rows = rows};
  const LayerDecision anew = policy->Decide({.layer = 1, .counts = broke, .estimates = {}});
  EXPECT_THAT(anew.demand.changes, SizeIs(Gt(0)));
  EXPECT_THAT(anew.awaited, SizeIs(Gt(0)));
  EXPECT_EQ(policy->table(1).replicas().NumReplicas(4), 2);
  // Its twin without phase 2 keeps expert 4 where it was packed.
  const std::unique_ptr<PlacementPolicy> rash = Make(PlacementMode::kNoFinetune);
  rash->Decide(first);
  EXPECT_THAT(rash->Decide({.layer = 1, .counts = broke, .estimates = {}}).demand.changes, IsEmpty());
  EXPECT_EQ(rash->table(1).replicas().NumReplicas(4), 1);
}

TEST(LayerDecisionTest, WhatDiffersIsNamed) {
  const std::unique_ptr<PlacementPolicy> a = Make(PlacementMode::kAgreed), b = Make(PlacementMode::kAgreed);
  std::vector<int32_t> rows(kDevices * kExperts, 5), other = rows;
  other[17] = 6;
  const LayerDecision left =
      a->Decide({.counts = {.num_ranks = kDevices, .num_experts = kExperts, .rows = rows}, .estimates = {}});
  const LayerDecision right =
      b->Decide({.counts = {.num_ranks = kDevices, .num_experts = kExperts, .rows = other}, .estimates = {}});
  EXPECT_NE(left.digest.hash(), right.digest.hash());
  EXPECT_THAT(DescribeMismatch(left.digest, 0, right.digest, 1), testing::StartsWith("counts: "));
  // Other costs.
  const std::unique_ptr<PlacementPolicy> c = Make(PlacementMode::kAgreed, {.copy_ps = 2});
  const LayerDecision costly =
      c->Decide({.counts = {.num_ranks = kDevices, .num_experts = kExperts, .rows = rows}, .estimates = {}});
  EXPECT_THAT(DescribeMismatch(left.digest, 0, costly.digest, 1), testing::StartsWith("constants: "));
}

TEST(LayerDecisionTest, ShapesThatCannotBe) {
  PolicyShape shape = ShapeOf(PlacementMode::kAgreed, {});
  shape.residents[2] = ContiguousPlacement(kExperts, 4, 0);
  EXPECT_THAT(MakePlacementPolicy(shape).status().message(), HasSubstr("layer 2 has 16 experts on 4 devices, layer 0"));
  shape.residents[2] = {.num_experts = kExperts, .slots = {{0}}};
  EXPECT_THAT(MakePlacementPolicy(shape).status().message(), HasSubstr("layer 2: placement: no device holds expert 1"));
  EXPECT_THAT(MakePlacementPolicy({}).status().message(), HasSubstr("no layers"));
}

}  // namespace
}  // namespace switchyard::placement
