// The arrays of a step's sequences for kernels, on the CPU, where a test can read them.
#include "workers/ops/sampling/device_sequences.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int32_t kTile = kCudaQueryTile;
using Tiles = std::vector<std::pair<int32_t, int32_t>>;  // (sequence, first query)

class DeviceSequencesTest : public testing::Test {
 protected:
  // Of a step of (start_pos, num_query), one behind the other.
  Tiles TilesOf(const std::vector<std::pair<int32_t, int32_t>>& step) {
    std::vector<SequenceRows> sequences;
    int64_t rows = 0;
    for (const auto& [start_pos, num_query] : step) {
      sequences.push_back(
          {.row_begin = rows, .num_query = num_query, .start_pos = start_pos, .block_table = block_table_});
      rows += num_query;
    }
    auto made = DeviceSequences::Create(Device::Cpu(), {.sequences = 8, .rows = 16 * kTile, .blocks = 64});
    EXPECT_TRUE(made.ok()) << made.status();
    const absl::Status set = made->Set(stream_, sequences, rows, cache_);
    EXPECT_TRUE(set.ok()) << set;
    Tiles tiles;
    for (int64_t i = 0; i < made->view().num_tiles; ++i) {
      tiles.emplace_back(made->view().tiles[2 * i], made->view().tiles[2 * i + 1]);
    }
    return tiles;
  }

 private:
  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
  Tensor k_{DType::kF32, KvCacheShape(1, 1, 64, 1)}, v_{DType::kF32, KvCacheShape(1, 1, 64, 1)};
  KvCacheView cache_{.k = k_, .v = v_};
  std::vector<int32_t> block_table_ = std::vector<int32_t>(64, 0);
};

TEST_F(DeviceSequencesTest, TilesWithTheMostKeysComeFirst) {
  EXPECT_EQ(TilesOf({{0, 3 * kTile}}), (Tiles{{0, 2 * kTile}, {0, kTile}, {0, 0}})) << "the last tile sees all keys";
  EXPECT_EQ(TilesOf({{0, kTile + 2}, {10 * kTile, 2}, {5, 1}, {kTile, kTile}}),
            (Tiles{{1, 0}, {3, 0}, {0, kTile}, {0, 0}}))
      << "a short chunk of a long sequence before a long one of a short sequence; no tile of a decode";
}

TEST_F(DeviceSequencesTest, TilesOfAsManyKeysStandInTheOrderOfTheSequences) {
  EXPECT_EQ(TilesOf({{2, 3}, {0, 5}, {3, 2}}), (Tiles{{0, 0}, {1, 0}, {2, 0}}));
}

TEST_F(DeviceSequencesTest, AStepWithoutPromptsHasNoTiles) {
  EXPECT_EQ(TilesOf({}), Tiles());
  EXPECT_EQ(TilesOf({{4, 1}, {0, 0}, {90, 1}}), Tiles());
}

}  // namespace
}  // namespace switchyard::ops
