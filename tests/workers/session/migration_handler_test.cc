// A worker's answers to the server's migrations, with a host that the test controls.
#include "workers/session/migration_handler.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link/placement_codec.h"

namespace switchyard::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kGroup = 4;

class MigrationHandlerTest : public testing::Test, public PlacementHost {
 protected:
  MigrationHandlerTest() { handler.Enter(kGroup); }

  absl::Status PreparePlacement(placement::Migration migration) override {
    if (!prepare.ok()) return prepare;
    migrations.push_back(std::move(migration));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> PlacementReady() override { return ready; }
  void DropPlacement(int64_t epoch) override { dropped.push_back(epoch); }
  absl::Status ReleasePlacement(int64_t epoch) override {
    released.push_back(epoch);
    return release;
  }

  v1::PreparePlacement PrepareOf(int64_t epoch, int64_t group = kGroup) {
    placement::Migration migration;
    migration.epoch = epoch;
    migration.arrivals = {{0, 1, 2, 3}};
    return link::ToProto(migration, group);
  }
  v1::ReleasePlacement ReleaseOf(int64_t epoch, int64_t group = kGroup) {
    v1::ReleasePlacement message;
    message.set_group_epoch(group);
    message.set_placement_epoch(epoch);
    return message;
  }
  v1::DropPlacement DropOf(int64_t epoch, int64_t group = kGroup) {
    v1::DropPlacement message;
    message.set_group_epoch(group);
    message.set_placement_epoch(epoch);
    return message;
  }

  absl::Status prepare, release;
  absl::StatusOr<bool> ready = false;
  std::vector<placement::Migration> migrations;
  std::vector<int64_t> dropped, released;
  std::vector<v1::LinkRequest> sent;
  MigrationHandler handler{this, [this](v1::LinkRequest message) { sent.push_back(std::move(message)); }};
};

TEST_F(MigrationHandlerTest, AnswersOnceTheCopiesAreThere) {
  EXPECT_FALSE(handler.waiting());
  handler.Prepare(PrepareOf(7));
  ASSERT_EQ(migrations.size(), 1u);
  EXPECT_EQ(migrations[0].epoch, 7);
  EXPECT_EQ(migrations[0].arrivals[0].slot, 3);
  handler.Poll();
  EXPECT_TRUE(handler.waiting());
  EXPECT_THAT(sent, IsEmpty());
  ready = true;
  handler.Poll();
  handler.Poll();
  EXPECT_FALSE(handler.waiting());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].placement_prepared().group_epoch(), kGroup);
  EXPECT_EQ(sent[0].placement_prepared().placement_epoch(), 7);
  EXPECT_EQ(sent[0].placement_prepared().error(), "");
  ASSERT_TRUE(handler.Release(ReleaseOf(7)).ok());
  EXPECT_THAT(released, ElementsAre(7));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].placement_released().group_epoch(), kGroup);
  EXPECT_EQ(sent[1].placement_released().placement_epoch(), 7);
}

TEST_F(MigrationHandlerTest, SaysWhatCannotBePrepared) {
  prepare = absl::FailedPreconditionError("another migration is there");
  handler.Prepare(PrepareOf(7));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].placement_prepared().error(), "another migration is there");
  EXPECT_FALSE(handler.waiting());
  prepare = absl::OkStatus();
  ready = absl::DataLossError("expert 1 of MoE layer 0: its checksum is wrong");
  handler.Prepare(PrepareOf(8));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].placement_prepared().placement_epoch(), 8);
  EXPECT_THAT(sent[1].placement_prepared().error(), HasSubstr("its checksum is wrong"));
  EXPECT_FALSE(handler.waiting());
  v1::PreparePlacement uneven = PrepareOf(9);
  uneven.mutable_arrivals()->add_slots(4);
  handler.Prepare(uneven);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_THAT(sent[2].placement_prepared().error(), HasSubstr("columns of 1 and 2"));
}

TEST_F(MigrationHandlerTest, AMigrationThatIsDroppedIsNotAnswered) {
  handler.Prepare(PrepareOf(7));
  handler.Drop(DropOf(6));
  EXPECT_TRUE(handler.waiting()) << "another epoch";
  handler.Drop(DropOf(7));
  ready = true;
  handler.Poll();
  EXPECT_THAT(dropped, ElementsAre(6, 7));
  EXPECT_THAT(sent, IsEmpty());
}

TEST_F(MigrationHandlerTest, AGroupThatIsOverIsNotAnswered) {
  handler.Prepare(PrepareOf(7, kGroup - 1));
  handler.Drop(DropOf(7, kGroup + 1));
  EXPECT_TRUE(handler.Release(ReleaseOf(7, kGroup - 1)).ok());
  handler.Prepare(PrepareOf(7));
  handler.Enter(0);
  EXPECT_FALSE(handler.waiting());
  ready = true;
  handler.Poll();
  handler.Prepare(PrepareOf(8, 0));
  EXPECT_EQ(migrations.size(), 1u);
  EXPECT_THAT(dropped, IsEmpty());
  EXPECT_THAT(released, IsEmpty());
  EXPECT_THAT(sent, IsEmpty());
}

TEST_F(MigrationHandlerTest, AReleaseThatFailsIsAFault) {
  release = absl::FailedPreconditionError("placement 7 is not in use");
  EXPECT_EQ(handler.Release(ReleaseOf(7)), release);
  EXPECT_THAT(sent, IsEmpty());
}

}  // namespace
}  // namespace switchyard::worker
