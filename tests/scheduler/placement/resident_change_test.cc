// Migrations of the background balancer under the per-step balancer's transient slots: what stays, what is where, and
// that every rank agrees.
#include "scheduler/placement/per_step/resident_change.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kNone = kEmptySlot;

ResidencyMove Copy(int layer, int expert, int device) { return {layer, expert, device, 0}; }
ResidencyMove Release(int layer, int expert, int device) { return {layer, expert, device, 0}; }

TEST(WithTransientSlotsTest, EmptySlotsOfResidentsAreTheSlowLoops) {
  const Placement residents{.num_experts = 3, .slots = {{0, kNone, 1}, {kNone, 2, kNone}}};
  EXPECT_THAT(WithTransientSlots(residents, 1).slots, ElementsAre(ElementsAre(0, 1, kNone), ElementsAre(2, kNone)));
}

class ChangeResidentsTest : public testing::Test {
 protected:
  // Two layers; the per-step balancer has expert 2 on device 0 and nothing, in flight, or expert 1 on device 1.
  ChangeResidentsTest() {
    const Placement base{.num_experts = 4, .slots = {{0, 1, kNone, kNone}, {2, 3, kNone}}};
    residents_ = {base, base};
    Placement table = base;
    table.slots[0][3] = 2;
    table.slots[1][2] = 1;
    tables_ = {SlotTable(table, {{-1, -1, -1, 7}, {-1, -1, 9}}), SlotTable(base)};
  }
  absl::StatusOr<std::vector<ResidentChange>> Change(const ResidencyMigration& migration) const {
    return ChangeResidents(migration, residents_, tables_);
  }
  std::vector<Placement> residents_;
  std::vector<SlotTable> tables_;
};

TEST_F(ChangeResidentsTest, ArrivalsComeBehindAndTransientsStay) {
  const auto changes = Change({.arrivals = {Copy(0, 3, 0)}, .departures = {Release(0, 3, 1)}});
  ASSERT_TRUE(changes.ok()) << changes.status();
  ASSERT_EQ(changes->size(), 1u);
  const ResidentChange& change = changes->front();
  EXPECT_EQ(change.layer, 0);
  EXPECT_THAT(change.residents.slots, ElementsAre(ElementsAre(0, 1, 3, kNone, kNone), ElementsAre(2, kNone)));
  EXPECT_THAT(change.table.placement().slots, ElementsAre(ElementsAre(0, 1, 3, kNone, 2), ElementsAre(2, 1)));
  EXPECT_THAT(change.table.in_flight(), ElementsAre(ElementsAre(-1, -1, -1, -1, 7), ElementsAre(-1, 9)));
}

TEST_F(ChangeResidentsTest, WhatWasTransientThereLeavesItsSlotEmpty) {
  const auto changes = Change({.arrivals = {Copy(0, 1, 1)}, .departures = {Release(0, 1, 0)}});
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(changes->front().table.placement().slots,
              ElementsAre(ElementsAre(0, kNone, 2), ElementsAre(2, 3, 1, kNone)));
  EXPECT_THAT(changes->front().table.in_flight(), ElementsAre(ElementsAre(-1, -1, 7), ElementsAre(-1, -1, -1, -1)));
}

TEST_F(ChangeResidentsTest, LayersRiseAndOthersAreNotTouched) {
  const auto changes = Change({.arrivals = {Copy(1, 0, 1), Copy(0, 0, 1)}, .departures = {}});
  ASSERT_TRUE(changes.ok()) << changes.status();
  ASSERT_EQ(changes->size(), 2u);
  EXPECT_EQ((*changes)[0].layer, 0);
  EXPECT_EQ((*changes)[1].layer, 1);
  EXPECT_TRUE(Change({})->empty());
}

TEST_F(ChangeResidentsTest, RefusesWhatCannotBe) {
  const auto refusal = [&](const ResidencyMigration& migration) {
    return std::string(Change(migration).status().message());
  };
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {Release(0, 3, 1)}}), HasSubstr("no device holds expert 3"));
  EXPECT_THAT(refusal({.arrivals = {Copy(0, 1, 0)}, .departures = {}}), HasSubstr("resident there already"));
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {Release(0, 2, 0)}}), HasSubstr("not resident there"));
  EXPECT_THAT(refusal({.arrivals = {Copy(0, 1, 0)}, .departures = {Release(0, 1, 0)}}),
              HasSubstr("expert 1 of layer 0 departs from device 0 and arrives there"));
  EXPECT_THAT(refusal({.arrivals = {Copy(2, 0, 1)}, .departures = {}}), HasSubstr("no such layer"));
  EXPECT_THAT(refusal({.arrivals = {Copy(0, 4, 1)}, .departures = {}}), HasSubstr("no such expert"));
  EXPECT_THAT(refusal({.arrivals = {Copy(0, 0, 2)}, .departures = {}}), HasSubstr("no such rank"));
}

// Random migrations between random decisions, on two ranks alike: rules kept, transient slots as many as before.
TEST(AdoptTest, RulesHoldBetweenDecisions) {
  constexpr int kExperts = 12, kDevices = 4, kSpare = 2;
  std::mt19937_64 rng(5);
  for (const PlacementMode mode : {PlacementMode::kAgreed, PlacementMode::kStaticSpare}) {
    const PolicyShape shape{.mode = mode,
                            .residents = {ContiguousPlacement(kExperts, kDevices, kSpare)},
                            .costs = {.copy_ps = 1, .row_ps = 1000, .layer_ps = 1000}};
    std::unique_ptr<PlacementPolicy> ranks[] = {*MakePlacementPolicy(shape), *MakePlacementPolicy(shape)};
    int adopted = 0;
    for (int64_t step = 1; step < 120; ++step) {
      const std::vector<int32_t> rows = placement_drill::RandomCounts(rng, kDevices, kExperts, 40);
      const RowCounts counts{.num_ranks = kDevices, .num_experts = kExperts, .rows = rows};
      const auto expert = static_cast<int32_t>(rng() % kExperts), device = static_cast<int32_t>(rng() % kDevices);
      ResidencyMigration migration{.arrivals = {Copy(0, expert, device)}, .departures = {}};
      const std::vector<int32_t> hosts = ranks[0]->shape().residents[0].DevicesOf(expert);
      if (hosts[0] != device && rng() % 2 == 0) migration.departures = {Release(0, expert, hosts[0])};
      DecisionDigest digests[2];
      for (int rank = 0; rank < 2; ++rank) {
        PlacementPolicy& policy = *ranks[rank];
        const auto layers = policy.Adopt(step, shape.costs, migration);
        adopted += layers.ok() ? 1 : 0;
        ASSERT_EQ(layers.ok(), std::find(hosts.begin(), hosts.end(), device) == hosts.end());
        ASSERT_EQ(policy.shape().epoch, layers.ok() ? step : policy.shape().epoch);
        digests[rank] = policy.Decide({.step = step, .layer = 0, .counts = counts, .estimates = {}}).digest;
        const Placement& placement = policy.table(0).placement();
        ASSERT_TRUE(CheckPlacement(placement).ok()) << placement.ToString();
        const Placement& residents = policy.shape().residents[0];
        for (int d = 0; d < kDevices; ++d) {
          ASSERT_EQ(placement.slots[d].size(), residents.slots[d].size());
          ASSERT_EQ(std::count(residents.slots[d].begin(), residents.slots[d].end(), kEmptySlot), kSpare);
          for (size_t slot = 0; slot < residents.slots[d].size(); ++slot) {
            if (residents.slots[d][slot] == kEmptySlot) continue;
            ASSERT_EQ(placement.slots[d][slot], residents.slots[d][slot]);
          }
        }
      }
      ASSERT_EQ(DescribeMismatch(digests[0], 0, digests[1], 1), "");
    }
    EXPECT_GT(adopted, 60);
  }
}

TEST(AdoptTest, AnEpochThatOneRankMissedShows) {
  const PolicyShape shape{.residents = {ContiguousPlacement(4, 2, 1)}, .costs = {}};
  const std::vector<int32_t> rows(8, 3);
  const LayerInputs inputs{.layer = 0, .counts = {.num_ranks = 2, .num_experts = 4, .rows = rows}, .estimates = {}};
  auto moved = *MakePlacementPolicy(shape), missed = *MakePlacementPolicy(shape);
  ASSERT_TRUE(moved->Adopt(3, {}, {.arrivals = {Copy(0, 0, 1)}, .departures = {}}).ok());
  EXPECT_THAT(DescribeMismatch(moved->Decide(inputs).digest, 0, missed->Decide(inputs).digest, 1),
              testing::StartsWith("constants: "));
}

TEST(AdoptTest, ThePapersModesHaveNoResidents) {
  for (const PlacementMode mode : {PlacementMode::kCentral, PlacementMode::kNoEstimate, PlacementMode::kNoFinetune}) {
    auto policy = *MakePlacementPolicy({.mode = mode, .residents = {ContiguousPlacement(4, 2, 1)}, .costs = {}});
    EXPECT_EQ(policy->CheckMigration({}).code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace switchyard::placement
