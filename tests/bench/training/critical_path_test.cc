// By hand: what a step takes at least, and what its bytes take on the links.
#include "tests/bench/training/critical_path.h"

#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/bench/training/links.h"
#include "tests/bench/training/step_path.h"

namespace switchyard::bench {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

PathInput OneLayer(const pipeline::MoeSchedule& schedule) {
  return {.layers = 1,
          .schedule = &schedule,
          .attention = 10 * kMs,
          .experts = 4 * kMs,
          .all_to_all = 6 * kMs,
          .feed_forward_sums = {absl::ZeroDuration()},
          .attention_out_sums = {absl::ZeroDuration()},
          .attention_in_sums = {absl::ZeroDuration()}};
}

TEST(CriticalPathTest, WholeAllToAllsAreExposedButForTheGradientsOfWeights) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.trains = true});
  const CriticalPath path = FindCriticalPath(OneLayer(schedule));
  EXPECT_EQ(path.compute, (10 + 4 + 20 + 8) * kMs);
  // Forward 2 * 6; backward 6 before the experts, and 6 behind them, 4 of these for gradients of weights.
  EXPECT_EQ(path.exposed(), (12 + 6 + 2) * kMs);
  EXPECT_EQ(path.moe_backward, (6 + 4 + 6) * kMs);
}

TEST(CriticalPathTest, ChunksHideExpertsBehindAllToAlls) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = 2, .trains = true});
  const CriticalPath path = FindCriticalPath(OneLayer(schedule));
  // Forward: dispatches end at 3 and 6, experts at 5 and 8, combines at 9 and 12: 12 where compute takes 4.
  // Backward: dispatches end at 3 and 6, experts at 5 and (after gradients of weights until 7) 9, combines go from 6
  // to 9 and from 9 to 12: 12 where compute takes 8.
  EXPECT_EQ(path.moe_backward, 12 * kMs);
  EXPECT_EQ(path.exposed(), (8 + 4) * kMs);
}

TEST(CriticalPathTest, SumsUseWhatAllToAllsLeave) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.trains = true});
  PathInput input = OneLayer(schedule);
  const CriticalPath without = FindCriticalPath(input);
  // Complete when the layer's backward begins: 4 ms beside the experts' first half, then 20 ms beside attention.
  input.head_sums = 24 * kMs;
  EXPECT_EQ(FindCriticalPath(input).step, without.step);
  input.head_sums = 25 * kMs;
  EXPECT_EQ(FindCriticalPath(input).step, without.step + 1 * kMs);
  // What is complete at the end has nothing to hide behind.
  input.head_sums = absl::ZeroDuration();
  input.embedding_sums = 7 * kMs;
  EXPECT_EQ(FindCriticalPath(input).exposed(), without.exposed() + 7 * kMs);
}

TEST(CriticalPathTest, SumsOfAnUpperLayerHideInTheLowerOne) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.trains = true});
  PathInput input = OneLayer(schedule);
  input.layers = 2;
  const absl::Duration none = absl::ZeroDuration();
  input.feed_forward_sums = input.attention_out_sums = {none, none};
  input.attention_in_sums = {none, 5 * kMs};
  const CriticalPath hidden = FindCriticalPath(input);
  input.attention_in_sums = {5 * kMs, none};
  EXPECT_EQ(FindCriticalPath(input).step, hidden.step + 5 * kMs);
}

constexpr Links kLinks = {.rank_bytes_per_s = 4, .node_bytes_per_s = 12, .node_size = 4};

TEST(LinksTest, OneNodeHasNoOtherLinkThanTheRanks) {
  EXPECT_DOUBLE_EQ(WireSeconds(kLinks, RowGroup(4, 1, 2), 8), 6);
  EXPECT_DOUBLE_EQ(WireSeconds(kLinks, RowGroup(4, 4, 2), 8), 0);
}

TEST(LinksTest, ANodesRanksShareItsLink) {
  EXPECT_DOUBLE_EQ(WireSeconds(kLinks, RowGroup(16, 1, 5), 8), 8.0 * 12 * 4 / 12);
  EXPECT_DOUBLE_EQ(WireSeconds(kLinks, RowGroup(16, 2, 5), 8), 8.0 * 7 / 4);  // 8 * 4 * 4 / 12 is less
  EXPECT_DOUBLE_EQ(SumSeconds(kLinks, RowGroup(16, 1, 0), 160), 2 * 10.0 * 12 * 4 / 12);
}

TEST(LinksTest, ReplicasAreOnOtherNodesWhereBlocksAre) {
  EXPECT_EQ(RowGroup(16, 2, 9), (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(ReplicaGroup(16, 2, 9), (std::vector<int>{1, 9}));
  EXPECT_EQ(ReplicaGroup(4, 2, 3), (std::vector<int>{1, 3}));
  EXPECT_DOUBLE_EQ(SumSeconds(kLinks, ReplicaGroup(16, 2, 9), 24), 2 * 12.0 * 4 / 12);
  EXPECT_DOUBLE_EQ(SumSeconds(kLinks, ReplicaGroup(4, 2, 3), 24), 2 * 12.0 / 4);
}

TEST(StepPathTest, PackedExpertsAreSummedOverReplicasAndTheRestOverAll) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.trains = true});
  const StepShape shape = {.layers = 2,
                           .row_bytes = 64,
                           .attention = kMs,
                           .experts = kMs,
                           .feed_forward = {1},
                           .attention_out = {2},
                           .attention_in = {3, 1},
                           .expert = {5, 5},
                           .head = {},
                           .embedding = {8},
                           .decoder_layer = 1,
                           .decoder_out = {2},
                           .decoder_in = {1},
                           .decoder_embedding = {4}};
  const auto of_elements = [](double elements) { return absl::Seconds(2 * elements * 4 * 3 / 4 / 4); };  // over all
  PathInput path = PathOfStep(shape, kLinks, schedule, {.world = 4, .packing = 1});
  EXPECT_EQ(path.all_to_all, absl::Seconds(64.0 / 4 * 3 / 4));
  EXPECT_EQ(path.feed_forward_sums[0], of_elements(1));
  EXPECT_EQ(path.attention_out_sums, (std::vector<absl::Duration>{of_elements(2), of_elements(4)}));
  EXPECT_EQ(path.attention_in_sums, (std::vector<absl::Duration>{of_elements(4), of_elements(9)}));
  EXPECT_EQ(AllSums(path), of_elements(2 * 1 + 6 + 13 + 8));
  path = PathOfStep(shape, kLinks, schedule, {.world = 4, .packing = 2});
  EXPECT_EQ(path.all_to_all, absl::Seconds(64.0 / 2 / 4));
  // Two experts of 10 elements; half go to the other replica, and come back.
  EXPECT_EQ(path.feed_forward_sums[0], of_elements(1) + absl::Seconds(2 * 2 * 10 * 4 / 2 / 4.0));
}

}  // namespace
}  // namespace switchyard::bench
