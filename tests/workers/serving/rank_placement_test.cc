// The expert file under a rank's placement: bytes that changed since it was made are noticed when they are copied.
#include "workers/serving/rank_placement.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/safetensors/safetensors.h"
#include "workers/model/config/config.h"

namespace switchyard::worker {
namespace {

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";

bool GoOn(int64_t, int64_t) { return true; }

void Damage(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".pack") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t at = 8192 + 100; at < static_cast<int64_t>(entry.file_size()); at += 4096) {
      file.seekg(at);
      const char flipped = static_cast<char>(file.get() ^ 64);
      file.seekp(at);
      file.put(flipped);
    }
    ASSERT_TRUE(file.good());
  }
}

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
  auto placed = RankPlacement::Open(input, GoOn);
  ASSERT_TRUE(placed.ok()) << placed.status();
  Damage(folder.path());
  const absl::Status status = (*placed)->Begin(GoOn);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("have changed since the file was made"));
  EXPECT_TRUE((*placed)->found_damage());
  (*placed)->file().Discard();

  placed = RankPlacement::Open(input, GoOn);
  ASSERT_TRUE(placed.ok()) << placed.status();
  const absl::Status again = (*placed)->Begin(GoOn);
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_FALSE((*placed)->found_damage());
  EXPECT_EQ((*placed)->counters().failed, 0);
}

}  // namespace
}  // namespace switchyard::worker
