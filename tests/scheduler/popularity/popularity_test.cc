#include "scheduler/popularity/popularity.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;

TEST(PopularityTest, CountsAreWholeRows) {
  EXPECT_THAT(FromCounts({3, 0, 1}), ElementsAre(3 * kRow, 0, kRow));
  EXPECT_EQ(TotalOf(FromCounts({3, 0, 1})), 4 * kRow);
}

TEST(PopularityTest, ScalingGivesWhatIsLeftToTheLargestRemainder) {
  EXPECT_THAT(ScaledTo({1, 1, 1}, 2), ElementsAre(1, 1, 0));        // equal remainders: the smaller ids
  EXPECT_THAT(ScaledTo({5, 3, 2}, 5), ElementsAre(3, 1, 1));        // 2.5, 1.5, 1.0
  EXPECT_THAT(ScaledTo({0, 0, 0, 0}, 6), ElementsAre(2, 2, 1, 1));  // of nothing: even
  EXPECT_THAT(ScaledTo({7}, 0), ElementsAre(0));
}

TEST(PopularityTest, ScalingKeepsTheTotalAndEachShareWithinOne) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Popularity shares(1 + random() % 70);
    for (int64_t& share : shares) share = static_cast<int64_t>(random() >> (20 + random() % 40));
    const auto total = static_cast<int64_t>(random() % (int64_t{1} << 40));
    const Popularity scaled = ScaledTo(shares, total);
    EXPECT_EQ(TotalOf(scaled), total);
    const auto sum = static_cast<long double>(TotalOf(shares));
    if (sum == 0) continue;
    for (size_t e = 0; e < shares.size(); ++e) {
      EXPECT_LT(std::abs(static_cast<long double>(scaled[e]) - static_cast<long double>(shares[e]) * total / sum),
                1.01L);
    }
  }
}

TEST(PopularityTest, TopExpertsBreakTiesById) {
  EXPECT_THAT(TopExperts({2, 5, 5, 1}, 3), ElementsAre(1, 2, 0));
  EXPECT_THAT(TopExperts({2, 5}, 9), ElementsAre(1, 0));
  EXPECT_TRUE(SameTopExperts({9, 8, 1, 0}, {5, 7, 2, 2}, 2));   // another order is the same set
  EXPECT_FALSE(SameTopExperts({9, 8, 1, 0}, {5, 1, 2, 2}, 2));  // 0 and 2: the tie goes to the smaller id
}

}  // namespace
}  // namespace switchyard::popularity
