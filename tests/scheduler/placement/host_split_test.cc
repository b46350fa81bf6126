#include "scheduler/placement/route/host_split.h"

#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using ::testing::ElementsAre;

// Four experts and two ranks on one host; rank 0 owns the first two.
const HostGroups kPair = {.host_of = {0, 0}, .owner_of = {0, 0, 1, 1}};

std::vector<int64_t> Loads(HostSplit* split, const std::vector<int32_t>& counts) {
  return split->Split(counts).loads();
}

TEST(HostSplitTest, FewRowsGoToTheirOwner) {
  HostSplit split(1, kPair, 8);
  const SplitTable table = split.Split({7, 0, 7, 1});
  EXPECT_THAT(table.Pieces(1, 0), ElementsAre(SplitPiece{0, 7}));
  EXPECT_THAT(table.Pieces(1, 1), ElementsAre());
  EXPECT_THAT(table.Pieces(1, 2), ElementsAre(SplitPiece{1, 7}));
  EXPECT_THAT(table.Pieces(0, 0), ElementsAre());  // of others it says nothing
}

TEST(HostSplitTest, ManyRowsStayWhereRanksHaveAsMany) {
  HostSplit split(1, kPair, 8);
  split.Begin({100, 100});
  EXPECT_THAT(Loads(&split, {90, 8, 0, 2}), ElementsAre(0, 100));
  split.Begin({100, 40});  // this rank has fewer than the mean: the other one gives
  EXPECT_THAT(Loads(&split, {36, 40, 2, 2}), ElementsAre(0, 80));
}

TEST(HostSplitTest, ARankWithAllRowsGivesHalfWholeExpertsFirst) {
  HostSplit split(0, kPair, 8);
  split.Begin({200, 0});
  const SplitTable table = split.Split({150, 100, 50, 100});
  EXPECT_THAT(table.loads(), ElementsAre(200, 200));
  EXPECT_THAT(table.Pieces(0, 0), ElementsAre(SplitPiece{0, 150}));
  EXPECT_THAT(table.Pieces(0, 1), ElementsAre(SplitPiece{0, 50}, SplitPiece{1, 50}));
  EXPECT_THAT(table.Pieces(0, 2), ElementsAre(SplitPiece{1, 50}));
  EXPECT_THAT(table.Pieces(0, 3), ElementsAre(SplitPiece{1, 100}));
}

TEST(HostSplitTest, WhatIsHardlyMoreThanTheMeanStays) {
  HostSplit split(0, kPair, 8);
  split.Begin({101, 99});
  EXPECT_THAT(Loads(&split, {101, 0, 101, 0}), ElementsAre(202, 0));
}

TEST(HostSplitTest, AnotherHostsRanksGetEqualPartsOfManyRows) {
  const HostGroups groups = {.host_of = {0, 1, 1}, .owner_of = {0, 2}};
  HostSplit split(0, groups, 8);
  EXPECT_THAT(split.Split({30, 15}).Pieces(0, 1), ElementsAre(SplitPiece{2, 15}));
  EXPECT_THAT(split.Split({30, 17}).Pieces(0, 1), ElementsAre(SplitPiece{1, 9}, SplitPiece{2, 8}));
}

// Whatever ranks have and experts get: each row goes to one rank that has its expert, and where all rows are many the
// busiest rank of a host has the mean, but for less than `many_rows` rows for each other rank.
TEST(HostSplitTest, RanksOfAHostComputeAlikeWhateverIsPopular) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 2 + trial % 5, experts = ranks + static_cast<int>(random() % 12), hosts = 1 + trial % 2;
    const int32_t many = 1 + static_cast<int32_t>(random() % 16), top_k = 2;
    HostGroups groups;
    for (int r = 0; r < ranks; ++r) groups.host_of.push_back(r * hosts / ranks);
    for (int e = 0; e < experts; ++e) groups.owner_of.push_back(e * ranks / experts);
    std::vector<int32_t> rank_rows;
    for (int r = 0; r < ranks; ++r) rank_rows.push_back(static_cast<int32_t>(random() % 3 * (random() % 500)));
    std::vector<int64_t> loads(static_cast<size_t>(ranks)), own(static_cast<size_t>(ranks));
    bool all_many = true;
    for (int r = 0; r < ranks; ++r) {
      std::vector<int32_t> counts(static_cast<size_t>(experts));
      for (int i = 0; i < rank_rows[static_cast<size_t>(r)] * top_k; ++i)
        ++counts[std::min<size_t>(static_cast<size_t>(experts) - 1, random() % 4 * (random() % 3))];
      HostSplit split(r, groups, many);
      split.Begin(rank_rows);
      const SplitTable table = split.Split(counts);
      for (int e = 0; e < experts; ++e) {
        int64_t placed = 0;
        for (const SplitPiece& piece : table.Pieces(r, e)) {
          placed += piece.rows;
          EXPECT_EQ(groups.host_of[static_cast<size_t>(piece.device)], groups.HostOf(e));
        }
        EXPECT_EQ(placed, counts[static_cast<size_t>(e)]);
        all_many &= counts[static_cast<size_t>(e)] == 0 || counts[static_cast<size_t>(e)] >= many;
      }
      for (int d = 0; d < ranks; ++d) loads[static_cast<size_t>(d)] += table.loads()[static_cast<size_t>(d)];
    }
    if (hosts > 1 || !all_many) continue;
    const int64_t all = std::accumulate(loads.begin(), loads.end(), int64_t{0});
    for (const int64_t load : loads) EXPECT_LE(load, all / ranks + int64_t{ranks} * many) << trial;
  }
}

}  // namespace
}  // namespace switchyard::placement
