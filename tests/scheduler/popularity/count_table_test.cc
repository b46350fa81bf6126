#include "scheduler/popularity/count_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;

ContextKey Key(uint64_t low) { return {.high = 0, .low = low}; }

TEST(CountTableTest, CountsByContextAndPassesOverDropped) {
  CountTable table(4, 8);
  table.Add(Key(7), {0, 3});
  table.Add(Key(7), {3, -1});
  table.Add(Key(8), {-1, -1});  // nothing to count: no row
  EXPECT_EQ(table.num_rows(), 1);
  const int32_t row = table.Find(Key(7));
  EXPECT_THAT(table.counts(row), ElementsAre(1, 0, 0, 2));
  EXPECT_EQ(table.total(row), 3u);
  EXPECT_EQ(table.Find(Key(8)), CountTable::kNoRow);
  EXPECT_EQ(table.Find({.high = 7, .low = 0}), CountTable::kNoRow);
}

TEST(CountTableTest, AFullTableEvictsTheQuarterWithTheSmallestTotalsTiesToTheLargerKey) {
  CountTable table(2, 8);
  for (uint64_t key = 0; key < 8; ++key)
    for (uint64_t i = 0; i < (key < 4 ? 1 : 3); ++i) table.Add(Key(key), {1});
  table.Add(Key(5), {0});  // known: nothing goes
  EXPECT_EQ(table.num_rows(), 8);
  table.Add(Key(9), {0});
  EXPECT_EQ(table.num_rows(), 7);  // 8 - 2 + 1
  for (const uint64_t key : {2, 3}) EXPECT_EQ(table.Find(Key(key)), CountTable::kNoRow) << key;
  for (const uint64_t key : {0, 1, 4, 5, 6, 7, 9}) EXPECT_NE(table.Find(Key(key)), CountTable::kNoRow) << key;
  EXPECT_THAT(table.counts(table.Find(Key(5))), ElementsAre(1, 3));
  EXPECT_THAT(table.counts(table.Find(Key(9))), ElementsAre(1, 0));
}

TEST(CountTableTest, NeverMoreRowsThanAllowed) {
  CountTable table(3, 16);
  for (uint64_t i = 0; i < 1000; ++i) {
    table.Add(Key(i * 7919 % 211), {static_cast<int16_t>(i % 3)});
    ASSERT_LE(table.num_rows(), 16);
  }
}

TEST(CountTableTest, ARowThatWouldOverflowIsHalved) {
  CountTable table(2, 4);
  for (int i = 0; i < 65535; ++i) table.Add(Key(1), {0});
  for (int i = 0; i < 101; ++i) table.Add(Key(1), {1});
  EXPECT_THAT(table.counts(0), ElementsAre(65535, 101));
  table.Add(Key(1), {0});
  EXPECT_THAT(table.counts(0), ElementsAre(32768, 50));
  EXPECT_EQ(table.total(0), 32818u);
  // A merge that would overflow keeps the shares, too.
  CountTable other = table;
  other.Merge(table);
  EXPECT_THAT(other.counts(0), ElementsAre(32768, 50));
}

TEST(CountTableTest, HalvingDropsRowsOfNothing) {
  CountTable table(2, 8);
  table.Add(Key(1), {0});
  table.Add(Key(2), {1});
  table.Add(Key(2), {1});
  table.Add(Key(2), {1});
  table.Halve();
  EXPECT_EQ(table.num_rows(), 1);
  EXPECT_EQ(table.Find(Key(1)), CountTable::kNoRow);
  EXPECT_THAT(table.counts(table.Find(Key(2))), ElementsAre(0, 1));
  EXPECT_EQ(table.total(table.Find(Key(2))), 1u);
}

TEST(CountTableTest, MergingDoesNotDependOnOrderUpToTheCap) {
  CountTable parts[3] = {CountTable(2, 64), CountTable(2, 64), CountTable(2, 64)};
  for (uint64_t i = 0; i < 90; ++i) parts[i % 3].Add(Key(i * i % 17), {static_cast<int16_t>(i % 2)});
  CountTable left = parts[0], right = parts[2];
  left.Merge(parts[1]);
  left.Merge(parts[2]);
  right.Merge(parts[1]);
  right.Merge(parts[0]);
  const std::vector<int32_t> a = left.RowsByKey(), b = right.RowsByKey();
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), 3u);
  uint32_t total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(left.key(a[i]), right.key(b[i]));
    EXPECT_EQ(left.counts(a[i]), right.counts(b[i]));
    total += left.total(a[i]);
  }
  EXPECT_EQ(total, 90u);
}

TEST(CountTableTest, AMergeIsCutToTheCap) {
  CountTable table(2, 4), other(2, 64);
  for (uint64_t key = 0; key < 20; ++key)
    for (uint64_t i = 0; i <= key % 10; ++i) other.Add(Key(key), {0});
  table.Add(Key(3), {1});
  table.Merge(other);
  EXPECT_EQ(table.num_rows(), 4);
  for (const uint64_t key : {8, 9, 18, 19}) EXPECT_NE(table.Find(Key(key)), CountTable::kNoRow) << key;
}

}  // namespace
}  // namespace switchyard::popularity
