// The expert file under a rank's placement: bytes that changed since it was made are noticed when they are copied.
#include "workers/serving/rank_placement.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/serving/damaged_file.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::worker {
namespace {

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";

bool GoOn(int64_t, int64_t) { return true; }

TEST(RankPlacement, ADamagedExpertFileIsNoticedAndMadeAnew) {
  const model::TempDir folder;
  const auto config = model::ReadModelConfig(kModel);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(kModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  RankPlacementInput input;
  input.file = {.config = &*config, .checkpoint = &*checkpoint, .weights = "of a test", .dir = folder.path()};
  input.settings = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1};
  input.world = 2;
  ThreadPool pool(1);
  auto placed = RankPlacement::Open(input, GoOn);
  ASSERT_TRUE(placed.ok()) << placed.status();
  test::DamageExpertFiles(folder.path());
  const absl::Status status = (*placed)->Begin(Stream::OnCpu(&pool), GoOn);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("have changed since the file was made"));
  EXPECT_TRUE((*placed)->found_damage());
  const std::string path = (*placed)->file().path();
  (*placed)->file().Discard();
  EXPECT_FALSE(std::filesystem::exists(path));

  placed = RankPlacement::Open(input, GoOn);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_TRUE((*placed)->file().built());
  const absl::Status again = (*placed)->Begin(Stream::OnCpu(&pool), GoOn);
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_FALSE((*placed)->found_damage());
  EXPECT_EQ((*placed)->counters().failed, 0);
}

}  // namespace
}  // namespace switchyard::worker
