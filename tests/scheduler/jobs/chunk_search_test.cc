#include "scheduler/jobs/chunk_search.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

using Cost = std::function<int64_t(int32_t chunks)>;

// Tries until it is found: "1 8 2 3: 2".
std::string Find(ChunkSearch* search, int64_t rows, const Cost& cost) {
  std::string text;
  for (;;) {
    const ChunkSearch::Answer next = search->Next(rows);
    if (next.found) return absl::StrCat(text.empty() ? "" : text, ": ", next.chunks);
    absl::StrAppend(&text, text.empty() ? "" : " ", next.chunks);
    search->Record(rows, cost(next.chunks));
  }
}

// One minimum, at n.
Cost Best(int32_t n) {
  return [n](int32_t chunks) { return 100 + 10 * std::abs(chunks - n); };
}

TEST(ChunkSearchTest, WalksFromTheBetterEnd) {
  const std::string expected[] = {"1 8 2: 1",       "1 8 2 3: 2",   "1 8 2 3 4: 3", "1 8 2 3 4 5: 4",
                                  "1 8 7 6 5 4: 5", "1 8 7 6 5: 6", "1 8 7 6: 7",   "1 8 7: 8"};
  for (int32_t n = 1; n <= 8; ++n) {
    ChunkSearch search(1, 8);
    EXPECT_EQ(Find(&search, 1000, Best(n)), expected[n - 1]);
    EXPECT_TRUE(search.HasOneMinimum(1000));
    EXPECT_TRUE(search.RisesWithRows());
    EXPECT_EQ(Find(&search, 1000, Best(1)), absl::StrCat(": ", n)) << "known";
  }
  ChunkSearch one(3, 3);
  EXPECT_EQ(Find(&one, 1000, Best(1)), ": 3");
  ChunkSearch flat(1, 4);
  EXPECT_EQ(Find(&flat, 1000, [](int32_t) { return 5; }), "1 4 2: 1") << "of equal ones the fewest";
}

// Rows between two of one number need no trial; beyond them only numbers on their side are tried.
TEST(ChunkSearchTest, LearnsRangesOfRows) {
  ChunkSearch search(1, 8);
  EXPECT_EQ(Find(&search, 1000, Best(4)), "1 8 2 3 4 5: 4");
  EXPECT_EQ(Find(&search, 3000, Best(4)), "4 8 5: 4");
  EXPECT_EQ(Find(&search, 2000, Best(7)), ": 4");
  EXPECT_EQ(Find(&search, 500, Best(2)), "1 4 2 3: 2");
  EXPECT_EQ(Find(&search, 700, Best(3)), "2 4 3: 3");
  EXPECT_EQ(Find(&search, 9000, Best(8)), "4 8 7: 8");
  EXPECT_EQ(Find(&search, 99000, Best(1)), ": 8") << "there is no higher number";
  EXPECT_EQ(Find(&search, 100, Best(1)), "1 2: 1");
  EXPECT_FALSE(search.RisesWithRows()) << "with 3000 rows it stayed at the end that 1000 had set";
}

TEST(ChunkSearchTest, RisingNumbersAreSeenToRise) {
  ChunkSearch search(1, 8);
  for (int32_t n = 2; n <= 7; ++n) {
    ChunkSearch fresh = search;
    Find(&search, 1000 * n, Best(n));
    EXPECT_EQ(search.Next(1000 * n).chunks, n);
    EXPECT_TRUE(search.RisesWithRows());
    // Fewer chunks for more rows than before: it cannot leave the range, and says so.
    if (n == 2) continue;
    Find(&fresh, 1000 * n, Best(1));
    EXPECT_EQ(fresh.Next(1000 * n).chunks, n - 1);
    EXPECT_FALSE(fresh.RisesWithRows());
  }
}

// A local minimum, and whether it was seen.
TEST(ChunkSearchTest, SeveralMinima) {
  ChunkSearch search(1, 8);
  const int64_t costs[] = {0, 50, 40, 45, 10, 60, 70, 55, 60};  // least at 4, others at 2 and 7
  EXPECT_EQ(Find(&search, 1000, [&](int32_t n) { return costs[n]; }), "1 8 2 3: 2");
  EXPECT_TRUE(search.HasOneMinimum(1000)) << "50 40 45 60";
  const int64_t other[] = {0, 50, 40, 45, 10, 60, 70, 55, 42};
  ChunkSearch from_above(1, 8);
  EXPECT_EQ(Find(&from_above, 1000, [&](int32_t n) { return other[n]; }), "1 8 7: 8");
  EXPECT_FALSE(from_above.HasOneMinimum(1000)) << "50 55 42";
  // 1 is the better end, 2 is worse, and 8 better than 2.
  ChunkSearch seen(1, 8);
  EXPECT_EQ(Find(&seen, 1000, [](int32_t n) { return n == 1 ? 10 : n == 8 ? 11 : 20; }), "1 8 2: 1");
  EXPECT_FALSE(seen.HasOneMinimum(1000));
  EXPECT_EQ(seen.Tried(1000).size(), 3u);
  EXPECT_TRUE(seen.Tried(7).empty());
}

// Trials of several numbers of rows by turns: whatever the times, it ends, and ranges stay apart.
TEST(ChunkSearchTest, EndsWhateverTheTimes) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    ChunkSearch search(1, 8);
    const int64_t rows[] = {100, 200, 300, 400, 500};
    int tries = 0;
    for (;;) {
      const int64_t at = rows[random() % 5];
      if (std::all_of(std::begin(rows), std::end(rows), [&](int64_t r) { return search.Next(r).found; })) break;
      const ChunkSearch::Answer next = search.Next(at);
      EXPECT_GE(next.chunks, 1);
      EXPECT_LE(next.chunks, 8);
      if (next.found) continue;
      search.Record(at, static_cast<int64_t>(random() % 50));
      ASSERT_LE(++tries, 40);
    }
    if (!search.RisesWithRows()) continue;
    for (int i = 1; i < 5; ++i) EXPECT_LE(search.Next(rows[i - 1]).chunks, search.Next(rows[i]).chunks);
  }
}

}  // namespace
}  // namespace switchyard::jobs
