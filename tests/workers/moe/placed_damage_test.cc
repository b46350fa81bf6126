// Experts that arrive damaged at a rank, or are damaged in its slots: with looks and copies whose answers come
// late.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/replicated_experts_fixture.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr int kChunks = 4;

class PlacedDamageTest : public test::ReplicatedExpertsTest {
 protected:
  // Layer 0 has 0 and 1, layer 1 has 2 and 3; room for a migration's one.
  void MakeFilled(int chunks = kChunks) {
    Make(5, chunks);
    ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
    EXPECT_EQ(*Run(1, {2, 3}), "2 3");
  }
  // Expert 6 of layer 1 comes for a decision, which does not look at it.
  void BringDamaged(int copies) {
    copies_.Damage({1, 6}, copies);
    ASSERT_TRUE(experts_->Replace(1, 3, 6, CopyReason::kDemand).ok());
  }
  // Layers run that have no rows for it, until it was copied anew.
  bool AwaitRepaired() {
    for (const absl::Time end = test::Soon(); absl::Now() < end; absl::SleepFor(absl::Milliseconds(1))) {
      EXPECT_EQ(*Run(0, {0}), "0");
      if (Copies(CopyReason::kRepair) == 1) return true;
    }
    return false;
  }
};

TEST_F(PlacedDamageTest, AMigrationsBytesAreChecked) {
  MakeFilled();
  wrong_sum_ = 6;
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  const absl::Status damaged = AwaitFailure();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr("expert 6 of MoE layer 1 arrived with checksum"));
  ASSERT_TRUE(experts_->Drop().ok());
  EXPECT_EQ(Copies(CopyReason::kRepair), 0) << "it has no slot";
}

// A decision's copies are not looked at, but those of an expert that once came damaged are.
TEST_F(PlacedDamageTest, WhatCameDamagedOnceIsCheckedEverAfter) {
  MakeFilled();
  copies_.Damage({1, 6}, 3);
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  EXPECT_TRUE(absl::IsDataLoss(AwaitFailure()));
  ASSERT_TRUE(experts_->Drop().ok());
  ASSERT_TRUE(experts_->Replace(1, 3, 6, CopyReason::kDemand).ok());
  // The copy that the decision ordered; if it had failed by then, the one that the layer orders.
  const absl::Status lost = Run(1, {2, 6}).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("expert 6 of MoE layer 1 arrived with checksum"));
  copies_.Damage({1, 6}, 0);
  EXPECT_EQ(*Run(1, {2, 6}), "2 6");
}

TEST_F(PlacedDamageTest, AKeptExpertThatIsDamagedIsCopiedAnew) {
  MakeFilled();
  BringDamaged(1);
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  ASSERT_TRUE(AwaitReady()) << "the migration can have it, once it is right";
  EXPECT_EQ(Copies(CopyReason::kRepair), 1);
  EXPECT_EQ(Copies(CopyReason::kMigration), 0);
  EXPECT_EQ(*Run(1, {2, 6}), "2 6");
  experts_->Commit({{{1, 2}}});
  EXPECT_EQ(*Run(1, {6}), "6");
}

TEST_F(PlacedDamageTest, DamageFoundAgainFailsTheMigrationAndTheLayersThatNeedIt) {
  MakeFilled();
  BringDamaged(3);
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  EXPECT_TRUE(absl::IsDataLoss(AwaitFailure()));
  EXPECT_EQ(Copies(CopyReason::kRepair), 1);
  ASSERT_TRUE(experts_->Drop().ok());
  const absl::Status lost = Run(1, {2, 6}).status();  // tries once more
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_EQ(*Run(1, {2, 6}), "2 6") << "the fourth copy is whole";
}

// The migration is given up before anybody learns what it found; the decision still has the expert.
TEST_F(PlacedDamageTest, DamageThatADroppedMigrationFindsIsRepaired) {
  MakeFilled();
  BringDamaged(1);
  copies_.HoldLooks(absl::OkStatus());
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  ASSERT_TRUE(copies_.AwaitLooks(1));
  ASSERT_TRUE(experts_->Drop().ok());
  copies_.AllowLooks();
  ASSERT_TRUE(AwaitRepaired());
  EXPECT_EQ(*Run(1, {2, 6}), "2 6");
}

TEST_F(PlacedDamageTest, AGroupBeginsWithWholeExperts) {
  MakeFilled();
  BringDamaged(1);
  copies_.HoldLooks(absl::OkStatus());
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  copies_.AllowLooks();
  ASSERT_TRUE(copies_.AwaitLooks(kChunks));
  // The last chunk may not have been reported yet: then a layer learns of it.
  ASSERT_TRUE(Fill({{0, 1}, {2, 6}}).ok());
  ASSERT_TRUE(AwaitRepaired());
  EXPECT_EQ(Copies(CopyReason::kFill), 4);
  EXPECT_EQ(*Run(1, {2, 6}), "2 6");
}

// Of one chunk: were the look of the migration before taken for the new one's, nothing would be looked at.
TEST_F(PlacedDamageTest, EachMigrationLooksForItself) {
  for (const int chunks : {1, kChunks}) {
    MakeFilled(chunks);
    const int before = copies_.looks();
    copies_.HoldLooks(absl::DataLossError("of the migration before"));
    ASSERT_TRUE(experts_->Prepare({{{1, 3}}}).ok());
    ASSERT_TRUE(copies_.AwaitLooks(before + 1));
    ASSERT_TRUE(experts_->Drop().ok());
    ASSERT_TRUE(experts_->Prepare({{{1, 3}}}).ok());
    copies_.AllowLooks();
    EXPECT_TRUE(AwaitReady());
    EXPECT_EQ(copies_.looks(), before + 1 + chunks);
    EXPECT_EQ(Copies(CopyReason::kRepair), 0);
  }
}

// The expert goes and comes again while a chunk of it is being looked at.
TEST_F(PlacedDamageTest, ALookAtACopyThatIsGoneSaysNothingOfTheNextOne) {
  MakeFilled();
  copies_.HoldLooks(absl::DataLossError("of the copy before"));
  ASSERT_TRUE(experts_->Prepare({{{1, 3}}}).ok());
  ASSERT_TRUE(copies_.AwaitLooks(1));
  ASSERT_TRUE(experts_->Drop().ok());
  ASSERT_TRUE(experts_->Replace(1, 3, placement::kEmptySlot, CopyReason::kDemand).ok());
  ASSERT_TRUE(experts_->Prepare({{{1, 3}}}).ok());
  copies_.AllowLooks();
  EXPECT_TRUE(AwaitReady());
  EXPECT_EQ(Copies(CopyReason::kMigration), 1);
  EXPECT_EQ(Copies(CopyReason::kRepair), 0);
  EXPECT_EQ(copies_.looks(), 1);
}

TEST_F(PlacedDamageTest, AFailureOfACopyThatWasGivenUpSaysNothingOfTheNextOne) {
  MakeFilled();
  copies_.Hold();
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  ASSERT_TRUE(copies_.AwaitBegun(4 * kChunks + 1));
  copies_.FailNextChunk(absl::UnavailableError("of the copy before"));
  ASSERT_TRUE(experts_->Drop().ok());
  ASSERT_TRUE(experts_->Prepare({{{1, 6}}}).ok());
  copies_.AllowAll();
  EXPECT_TRUE(AwaitReady());
  EXPECT_EQ(Copies(CopyReason::kRepair), 0);
}

}  // namespace
}  // namespace switchyard::moe
