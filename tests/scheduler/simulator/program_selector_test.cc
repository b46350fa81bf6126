// Which program the selector takes, on clusters where the answer is known.
#include "scheduler/simulator/program_selector.h"

#include <string>

#include "gtest/gtest.h"

namespace switchyard::simulator {
namespace {

constexpr MoeLayerShape kShape = {
    .tokens = 480, .hidden = 10, .expert_hidden = 40, .rows_per_token = 2, .element_bytes = 1};

// flops: of a rank; at 1e30 computing takes no time.
Cluster EightRanks(double flops, double latency_s) {
  return {.ranks = 8, .ranks_per_node = 8, .rank_bytes_per_s = 1e6, .rank_latency_s = latency_s, .flops = flops};
}

std::string Choice(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape = kShape) {
  const auto options = SelectProgram(cluster, mesh, shape, ProgramOptions(cluster.ranks, mesh));
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? (*options)[0].name : "";
}

TEST(ProgramSelectorTest, ChunksWhereTheyHide) {
  // Nothing to hide behind, and each message costs its start: whole rows.
  EXPECT_EQ(Choice(EightRanks(1e30, 1e-4), {}), "ep:1");
  // The experts take as long as the messages, which start at once: as many chunks as there may be.
  EXPECT_EQ(Choice(EightRanks(960 * 4 * 10 * 40 / 0.0084, 0), {}), "ep:8");
}

TEST(ProgramSelectorTest, CopiesAndShards) {
  // By bytes S1's gather of tokens is ahead of S2's of choices, of which there are twice as many.
  EXPECT_EQ(Choice(EightRanks(1e30, 0), {.shards = 2, .copies = 4}), "parm:s1@2x4");
  // Ranks with the same rows need not send them: where messages' starts count one gather is the fewest.
  EXPECT_EQ(Choice(EightRanks(1e30, 1), {.copies = 4}), "sliced:gather@1x4");
  const auto options = SelectProgram(EightRanks(1e30, 0), {.shards = 2, .copies = 2}, kShape,
                                     ProgramOptions(8, {.shards = 2, .copies = 2}));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->back().name, "parm:baseline@2x2");
}

TEST(ProgramSelectorTest, LongerElementsOfTokens) {
  // With 1.5 rows a token S2's gather of choices has 3/2 of the bytes of S1's of tokens; 3/4 where these are fp32 in a
  // layer of 16 bits.
  MoeLayerShape shape = kShape;
  shape.rows_per_token = 1.5;
  const MoeMesh mesh = {.shards = 2, .copies = 4};
  EXPECT_EQ(Choice(EightRanks(1e30, 0), mesh, shape), "parm:s1@2x4");
  shape.token_bytes = 2;
  EXPECT_EQ(Choice(EightRanks(1e30, 0), mesh, shape).substr(0, 7), "parm:s2");
}

TEST(ProgramSelectorTest, RefusesAMeshThatDoesNotFit) {
  EXPECT_EQ(
      SelectProgram(EightRanks(1e30, 0), {.copies = 3}, kShape, ProgramOptions(8, {.copies = 3})).status().message(),
      "mesh: 8 ranks in groups of 3 copies");
}

}  // namespace
}  // namespace switchyard::simulator
