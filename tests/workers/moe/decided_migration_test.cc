// Migrations of the background balancer between steps, while the per-step balancer moves experts: the bits stay, and
// what comes out of turn is refused.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/decided_group.h"
#include "workers/moe/placement/per_step_balancer.h"

namespace switchyard::moe {
namespace {

using test::DecidedGroup;
using test::GroupResult;
using test::GroupRun;
using test::MigrationAt;
using test::RowsOf;
using testing::HasSubstr;

// Migrations are prepared, committed and dropped between steps, while the per-step balancer moves.
TEST(PerStepBalancerMigrationTest, ResidentsChangeUnderSteps) {
  const test::DecidedGroup group;
  const std::string expected = group.Expected();
  const auto move = [](int layer, int expert, int device) {
    return placement::ResidencyMove{layer, expert, device, 0};
  };
  const std::vector<test::MigrationAt> migrations = {
      {.prepared = 1, .committed = 2, .migration = {{move(0, 11, 0), move(1, 0, 3)}, {move(0, 11, 3)}}},
      {.prepared = 4, .committed = -5, .migration = {{move(2, 11, 0)}, {}}},
      {.prepared = 5, .committed = 7, .migration = {{move(0, 0, 3)}, {move(0, 0, 0)}}}};
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kAgreed, placement::PlacementMode::kStaticSpare}) {
    for (const int run : {0, 1, 2}) {
      const test::GroupResult result = group.Run({.mode = mode,
                                                  .rank_rows = test::RowsOf(4),
                                                  .delays = run % 2 == 1,
                                                  .every_other_step = run == 2,
                                                  .migrations = migrations});
      for (const absl::Status& status : result.statuses) ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(result.residual == expected);
      for (int rank = 0; rank < 4; ++rank) {
        const std::vector<placement::Placement>& placements = result.placements[static_cast<size_t>(rank)];
        EXPECT_EQ(result.epochs[static_cast<size_t>(rank)], 3);
        EXPECT_EQ(placements[0], result.placements[0][0]);
        EXPECT_TRUE(placements[0].Holds(0, 11));
        EXPECT_TRUE(placements[0].Holds(3, 0));
        EXPECT_EQ(placements[0].slots[0].size(), 5u);  // 1, 2, 11 and two transient ones
      }
      const auto migration_copies = [&](size_t rank) {
        return result.counters[rank].copies[static_cast<size_t>(CopyReason::kMigration)];
      };
      EXPECT_LE(migration_copies(0), 2);  // none of what was transient there
      EXPECT_EQ(migration_copies(1) + migration_copies(2), 0);
    }
  }
}

TEST(PerStepBalancerMigrationTest, RefusesWhatComesOutOfTurn) {
  const test::DecidedGroup group;
  const test::MigrationAt at = {.prepared = 1, .committed = 2, .migration = {{{0, 5, 0, 0}}, {}}};
  const auto refusal = [&](test::GroupRun run) {
    run.rank_rows = test::RowsOf(2);
    return group.Run(run).statuses[0];
  };
  test::MigrationAt resident = at;
  EXPECT_THAT(refusal({.migrations = {resident}}).message(), HasSubstr("resident there already"));
  test::MigrationAt later = {.prepared = 1, .committed = 6, .migration = {{{0, 11, 0, 0}}, {}}};
  EXPECT_EQ(refusal({.migrations = {later, later}}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal({.mode = placement::PlacementMode::kCentral, .migrations = {later}}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(PerStepBalancerMigrationTest, AStepOfAnUnknownEpochIsRefused) {
  auto balancer =
      *PerStepBalancer::Create({.shape = {.epoch = 4, .residents = {placement::ContiguousPlacement(4, 2, 0)}}});
  EXPECT_TRUE(balancer->BeginStep({1, 4}).ok());
  EXPECT_THAT(balancer->BeginStep({2, 5}).message(), HasSubstr("placement epoch 5; in use is 4, none is prepared"));
  EXPECT_TRUE(absl::IsFailedPrecondition(balancer->Ready().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(balancer->Release(5)));
  EXPECT_TRUE(balancer->Drop(5).ok());
}

}  // namespace
}  // namespace switchyard::moe
