#include "workers/moe/placement/gate_cost.h"

#include "gtest/gtest.h"

namespace switchyard::moe {
namespace {

TEST(GateCostTest, TheMedianOfTheFirstGatesAndAConstantFromThenOn) {
  GateCost pace(5);
  for (const int64_t took : {130, 90, 5000, 150}) {
    pace.Add(took, 100);
    EXPECT_EQ(pace.beside(7), 7);
  }
  pace.Add(120, 100);
  // 30, 0 (sooner than expected), 4900, 50, 20.
  EXPECT_EQ(pace.beside(7), 30);
  for (int i = 0; i < 20; ++i) pace.Add(9000, 0);
  EXPECT_EQ(pace.beside(7), 30);
}

TEST(GateCostTest, NoneIsMeasured) {
  GateCost pace(0);
  for (int i = 0; i < 20; ++i) pace.Add(9000, 0);
  EXPECT_FALSE(pace.measured());
  EXPECT_EQ(pace.beside(3), 3);
}

}  // namespace
}  // namespace switchyard::moe
