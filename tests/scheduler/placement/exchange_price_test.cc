#include "scheduler/placement/route/exchange_price.h"

#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

TEST(ExchangeCostTest, IsTheSlopeNotTheMean) {
  ExchangeCost price;
  // 1 ms whatever there is, and 10 us a row; most steps are small.
  for (int i = 0; i < 40; ++i) {
    const double rows = i % 4 == 0 ? 400 : 8;
    price.Add(rows, 1e-3 + 10e-6 * rows);
  }
  EXPECT_NEAR(price.seconds_per_row(), 10e-6, 1e-12);
  // What is new counts more: rows have become dearer.
  for (int i = 0; i < 10; ++i) price.Fade();
  for (int i = 0; i < 40; ++i) {
    const double rows = i % 4 == 0 ? 400 : 8;
    price.Add(rows, 1e-3 + 30e-6 * rows);
  }
  EXPECT_NEAR(price.seconds_per_row(), 30e-6, 1e-7);
}

TEST(ExchangeCostTest, IsNothingWhereNothingCanBeReported) {
  ExchangeCost price;
  EXPECT_EQ(price.seconds_per_row(), 0);
  for (int i = 0; i < 15; ++i) price.Add(100 * i, 1e-6 * i);
  EXPECT_EQ(price.seconds_per_row(), 0) << "too few";
  price.Add(1500, 15e-6);
  EXPECT_NEAR(price.seconds_per_row(), 1e-8, 1e-14);
  ExchangeCost alike;
  for (int i = 0; i < 100; ++i) alike.Add(100 + i % 2, 1e-3 + 1e-4 * (i % 2));
  EXPECT_EQ(alike.seconds_per_row(), 0) << "noise, not rows";
  ExchangeCost none;
  for (int i = 0; i < 100; ++i) none.Add(0, 1e-3);
  EXPECT_EQ(none.seconds_per_row(), 0) << "one worker alone";
}

TEST(ExchangeCostTest, IsWithinWhatWasSeen) {
  ExchangeCost falls, steep;
  for (int i = 0; i < 100; ++i) {
    falls.Add(i, 1e-3 - 1e-6 * i);
    steep.Add(i, i < 50 ? 0 : 1e-5 * i);
  }
  EXPECT_EQ(falls.seconds_per_row(), 0) << "more rows are never cheaper";
  EXPECT_LE(steep.seconds_per_row(), 3725e-5 / 4950 + 1e-12) << "not above all seconds over all rows";
}

}  // namespace
}  // namespace switchyard::placement
