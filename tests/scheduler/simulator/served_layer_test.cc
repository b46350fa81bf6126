// By hand: what a layer of a serving step takes in micro-batches.
#include "scheduler/simulator/served_layer.h"

#include "gtest/gtest.h"

namespace switchyard::simulator {
namespace {

// Two ranks, an expert each, both chosen by every row: it goes to the other rank once and comes back once.
ServedLayer TwoRanks() {
  return {.ranks = 2,
          .num_experts = 2,
          .top_k = 2,
          .row_bytes = 10,
          .expert = {.weights_seconds = 0.5, .row_seconds = 0.01},
          .links = {.start_seconds = 0.125, .bytes_per_second = 1000}};
}

TEST(ServedLayerTest, RowsThatTravel) {
  EXPECT_DOUBLE_EQ(TwoRanks().DispatchedRows(100), 100);
  EXPECT_DOUBLE_EQ(TwoRanks().ReturnedRows(100), 100);
  // One of four experts: three quarters of the rows have theirs elsewhere.
  const ServedLayer top1 = {.ranks = 4, .num_experts = 4, .top_k = 1};
  EXPECT_DOUBLE_EQ(top1.DispatchedRows(100), 75);
  EXPECT_DOUBLE_EQ(top1.ReturnedRows(100), 75);
  // Two of eight, four here: 4/8 * 3/7 of the rows have none there.
  ServedLayer top2 = {.ranks = 2, .num_experts = 8, .top_k = 2};
  EXPECT_DOUBLE_EQ(top2.DispatchedRows(140), 140 * (1 - 0.5 * 3 / 7));
  EXPECT_DOUBLE_EQ(top2.ReturnedRows(140), 140);
  top2.adds_outputs = true;
  EXPECT_DOUBLE_EQ(top2.ReturnedRows(140), top2.DispatchedRows(140));
}

// 100 rows of each rank are 200 of the expert: 2 s.  1000 bytes: 1.125 s each way.
TEST(ServedLayerTest, WholeRowsFollowEachOther) {
  EXPECT_DOUBLE_EQ(SecondsOfServedLayer(TwoRanks(), 100, 1), 1.125 + 2 + 1.125);
}

// S0 0-0.625, S1 to 1.25, C0 0.625-1.625, R0 to 2.25, C1 1.625-2.625, R1 to 3.25.
TEST(ServedLayerTest, HalvesHideEachOther) { EXPECT_DOUBLE_EQ(SecondsOfServedLayer(TwoRanks(), 100, 2), 3.25); }

// In four parts each expert's 50 rows take as long as its weights; in eight reading them takes twice as long as rows.
TEST(ServedLayerTest, WeightsAreReadInEachPart) {
  ServedLayer layer = TwoRanks();
  layer.links = {.start_seconds = 0, .bytes_per_second = 1e12};
  EXPECT_NEAR(SecondsOfServedLayer(layer, 100, 4), 2, 1e-6);
  EXPECT_NEAR(SecondsOfServedLayer(layer, 100, 8), 4, 1e-6);
}

TEST(ServedLayerTest, NoRowsTakeTheStarts) {
  ServedLayer layer = TwoRanks();
  EXPECT_DOUBLE_EQ(SecondsOfServedLayer(layer, 0, 1), 0.25);
}

}  // namespace
}  // namespace switchyard::simulator
