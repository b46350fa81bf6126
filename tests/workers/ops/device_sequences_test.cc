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
    Set(sequences, rows);
    Tiles tiles;
    for (int64_t i = 0; i < made_.view().num_tiles; ++i) {
      tiles.emplace_back(made_.view().tiles[2 * i], made_.view().tiles[2 * i + 1]);
    }
    return tiles;
  }
  void Set(const std::vector<SequenceRows>& sequences, int64_t rows) {
    EXPECT_TRUE(upload_.Begin(stream_).ok());
    const absl::Status set = made_.Set(stream_, &upload_, sequences, rows, cache_);
    EXPECT_TRUE(set.ok()) << set;
  }
  // A decode in row `row`.
  static SequenceRows Decode(int64_t row, int32_t slot, uint64_t generation, const std::vector<int32_t>& blocks) {
    return {.row_begin = row,
            .num_query = 1,
            .start_pos = 0,
            .block_table = blocks,
            .slot = slot,
            .generation = generation};
  }
  // What kernels find of a row's sequence.  The host may change it, as this is the CPU.
  int32_t* TableOf(int64_t row) {
    const CudaSequences& view = made_.view();
    return const_cast<int32_t*>(view.block_table + view.row_sequence[row] * view.table_stride);
  }

 private:
  const SequenceLimits limits_ = {.sequences = 8, .rows = 16 * kTile, .blocks = 64};
  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
  Tensor k_{DType::kF32, KvCacheShape(10, 1, 64, 1)}, v_{DType::kF32, KvCacheShape(10, 1, 64, 1)};
  KvCacheView cache_{.k = k_, .v = v_};
  std::vector<int32_t> block_table_ = std::vector<int32_t>(64, 0);
  IntUpload upload_ = *IntUpload::Create(Device::Cpu(), DeviceSequences::CountsOf(limits_));
  DeviceSequences made_ = *DeviceSequences::Create(Device::Cpu(), limits_);
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

TEST_F(DeviceSequencesTest, ATableStaysWhileItsSequenceIsThere) {
  const std::vector<int32_t> three = {3}, seven_eight = {7, 8}, grown = {7, 8, 9}, four = {4};
  Set({Decode(0, 5, 1, three), Decode(1, 2, 1, seven_eight)}, 2);
  EXPECT_EQ(TableOf(0)[0], 3);
  EXPECT_EQ(TableOf(1)[0], 7);
  EXPECT_EQ(TableOf(1)[1], 8);
  // In other rows; what is there is not sent again.
  TableOf(0)[0] = TableOf(1)[0] = -1;
  Set({Decode(0, 2, 1, grown), Decode(1, 5, 1, three)}, 2);
  EXPECT_EQ(TableOf(0)[0], -1);
  EXPECT_EQ(TableOf(0)[2], 9);
  EXPECT_EQ(TableOf(1)[0], -1);
  // After steps without it, too.
  Set({Decode(0, 5, 1, three)}, 1);
  Set({Decode(0, 2, 1, grown)}, 1);
  EXPECT_EQ(TableOf(0)[0], -1);
  EXPECT_EQ(TableOf(0)[2], 9);
  // Another sequence in its slot.
  Set({Decode(0, 2, 2, four)}, 1);
  EXPECT_EQ(TableOf(0)[0], 4);
  Set({Decode(0, 2, 3, grown)}, 1);
  EXPECT_EQ(TableOf(0)[0], 7);
}

TEST_F(DeviceSequencesTest, ASequenceWithoutASlotIsSentAnew) {
  const std::vector<int32_t> three = {3}, four = {4};
  Set({Decode(0, -1, 0, three)}, 1);
  TableOf(0)[0] = -1;
  Set({Decode(0, -1, 0, three)}, 1);
  EXPECT_EQ(TableOf(0)[0], 3);
  Set({Decode(0, 0, 1, four)}, 1);
  EXPECT_EQ(TableOf(0)[0], 4);
}

}  // namespace
}  // namespace switchyard::ops
