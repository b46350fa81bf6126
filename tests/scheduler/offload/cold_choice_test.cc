#include "scheduler/offload/cold_choice.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace switchyard::offload {
namespace {

TEST(ColdChoiceTest, RowsThatCostMoreThanACopyAreNeverRented) {
  ColdChoice choice(2);
  choice.BeginPass();
  EXPECT_TRUE(choice.StaysCold(0, 0.9, 1));
  EXPECT_FALSE(choice.StaysCold(1, 1, 1));
  EXPECT_FALSE(choice.StaysCold(1, 7, 1));
}

TEST(ColdChoiceTest, AnExpertIsCopiedWhenItsRentsWouldPayForIt) {
  ColdChoice choice(2);
  choice.BeginPass();
  EXPECT_TRUE(choice.StaysCold(1, 0.4, 1));
  EXPECT_TRUE(choice.StaysCold(1, 0.4, 1));
  EXPECT_TRUE(choice.StaysCold(0, 0.4, 1));  // each for itself
  EXPECT_FALSE(choice.StaysCold(1, 0.4, 1));
  // Copied, and gone again: it begins anew.
  EXPECT_TRUE(choice.StaysCold(1, 0.4, 1));
}

// Never more than twice what the better of renting always and copying at once would have cost.
TEST(ColdChoiceTest, AtMostTwiceOfWhatHindsightPays) {
  for (const double rent : {0.01, 0.3, 0.5, 0.99}) {
    for (int uses = 1; uses < 200; ++uses) {
      ColdChoice choice(1);
      choice.BeginPass();
      double paid = 0;
      bool copied = false;
      for (int use = 0; use < uses && !copied; ++use) {
        copied = !choice.StaysCold(0, rent, 1);
        paid += copied ? 1 : rent;
      }
      ASSERT_LE(paid, 2 * std::min(1.0, rent * uses)) << rent << " " << uses;
    }
  }
}

TEST(ColdChoiceTest, RentsFadeByHalfInAHalfLife) {
  ColdChoice choice(1);
  choice.BeginPass();
  EXPECT_TRUE(choice.StaysCold(0, 0.8, 1));
  for (int pass = 0; pass < ColdChoice::kHalfLife; ++pass) choice.BeginPass();
  EXPECT_TRUE(choice.StaysCold(0, 0.59, 1));  // 0.4 are left
  EXPECT_FALSE(choice.StaysCold(0, 0.02, 1));
}

}  // namespace
}  // namespace switchyard::offload
