#include "workers/moe/placement/gate_cost.h"

#include "gtest/gtest.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kMany = GateCost::kManyRows;

TEST(GateCostTest, TheMedianOfTheFirstGatesAndAConstantFromThenOn) {
  GateCost cost(5);
  for (const int64_t took : {130, 90, 5000, 150}) {
    cost.Add(took, 100, 8);
    EXPECT_EQ(cost.beside(7, 8), 7);
  }
  cost.Add(120, 100, 8);
  // 30, 0 (sooner than expected), 4900, 50, 20.
  EXPECT_EQ(cost.beside(7, 8), 30);
  EXPECT_EQ(cost.beside(7, 1), 30);
  for (int i = 0; i < 20; ++i) cost.Add(9000, 0, 8);
  EXPECT_EQ(cost.beside(7, 8), 30);
}

TEST(GateCostTest, OfManyRowsItGoesByTheRow) {
  GateCost cost(3 * GateCost::kFewPerMany);
  for (const int64_t a_row : {10, 900, 20}) {
    EXPECT_EQ(cost.beside(7, kMany), 7);
    cost.Add(100 + a_row * 2 * kMany, 100, 2 * kMany);
  }
  EXPECT_EQ(cost.beside(7, kMany), 20 * kMany);
  EXPECT_EQ(cost.beside(7, 5 * kMany), 20 * 5 * kMany);
  EXPECT_EQ(cost.beside(7, kMany - 1), 7) << "of few rows nothing was measured";
}

TEST(GateCostTest, NoneIsMeasured) {
  GateCost cost(0);
  for (int i = 0; i < 20; ++i) cost.Add(9000, 0, 1);
  for (int i = 0; i < 20; ++i) cost.Add(9000, 0, kMany);
  EXPECT_EQ(cost.beside(3, 1), 3);
  EXPECT_EQ(cost.beside(3, kMany), 3);
}

}  // namespace
}  // namespace switchyard::moe
