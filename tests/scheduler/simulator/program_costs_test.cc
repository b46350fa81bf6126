// A cluster by hand: what programs' collectives move on its links, and what layers take on it.
#include "scheduler/simulator/program_costs.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"

namespace switchyard::simulator {
namespace {

using pipeline::BuildExpertParallel;
using pipeline::BuildParm;
using pipeline::MoeSchedule;
using pipeline::ParmKind;
using pipeline::Pass;

// Computing takes no time beside messages, and a row's element is a byte.
constexpr MoeLayerShape kShape = {.tokens = 960, .hidden = 10, .expert_hidden = 40, .element_bytes = 1};
Cluster Ranks(int ranks, int per_node = 1 << 10) {
  return {.ranks = ranks, .ranks_per_node = per_node, .rank_bytes_per_s = 1e6, .node_bytes_per_s = 2e6, .flops = 1e30};
}

double Seconds(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape, const MoeSchedule& schedule,
               Pass pass = Pass::kForward) {
  const absl::StatusOr<SimInput> input = InputOfLayer(cluster, mesh, shape, schedule, pass);
  EXPECT_TRUE(input.ok()) << input.status();
  const absl::StatusOr<SimResult> result = Simulate(*input);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->seconds : 0;
}

TEST(ClusterTest, ReadsAFile) {
  const absl::StatusOr<Cluster> cluster = ParseCluster(
      "# two nodes\nranks = 8\nranks_per_node=4\n\nrank_bytes_per_s = 12e9  # each way\npeers_apart = "
      "true\nnode_latency_s=1e-4\nflops = "
      "2e13\n");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->ranks, 8);
  EXPECT_EQ(cluster->num_nodes(), 2);
  EXPECT_EQ(cluster->rank_bytes_per_s, 12e9);
  EXPECT_EQ(cluster->node_latency_s, 1e-4);
  EXPECT_EQ(cluster->flops, 2e13);
  EXPECT_TRUE(cluster->peers_apart);
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"ranks = 8\nrank = 4", "cluster file, line 2: no field of a cluster: 'rank'"},
           {"ranks = 8\nranks = 4", "cluster file, line 2: ranks is given twice"},
           {"peers_apart = 2", "cluster file, line 1: peers_apart: must be true or false: '2'"},
           {"flops = fast", "cluster file, line 1: flops: no number: 'fast'"},
           {"flops", "cluster file, line 1: flops: no number: ''"},
           {"ranks = 0", "cluster: ranks=0: must be within [1, 65536]"},
           {"flops = -1", "cluster: flops=-1: must be positive"},
           {"rank_latency_s = nan", "cluster: rank_latency_s=nan: must be at least 0"}}) {
    EXPECT_EQ(ParseCluster(text).status().message(), error);
  }
}

TEST(ClusterTest, NodesShareTheirLinks) {
  Cluster cluster = Ranks(8, 4);
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  // Each sends 7 messages over its own link; a node's four ranks send 4 each to the other node.
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, AllToAll(cluster, all, 1e6)), 8);
  cluster.node_bytes_per_s = 4e6;
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, AllToAll(cluster, all, 1e6)), 7);
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, AllToAll(cluster, {4, 5, 6, 7}, 1e6)), 3);
  // A ring crosses between nodes at two of eight places.
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, Ring(cluster, all, 1e6, 2)), 14);
  cluster.node_bytes_per_s = 0.5e6;
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, Ring(cluster, all, 1e6, 2)), 28);
  cluster.rank_latency_s = 0.25;
  cluster.node_latency_s = 0.5;
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, AllToAll(cluster, {0, 1}, 1e6)), 1.25);
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, Ring(cluster, {0, 4}, 1e6, 2)), 4 + 1);
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, Ring(cluster, {3}, 1e6, 2)), 0);
}

TEST(ClusterTest, PartsAreOfPeersAtSomeDistances) {
  const Cluster cluster = Ranks(8, 4);
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<double> sent(LinksOf(cluster).size(), 0);
  for (int part = 0; part < 3; ++part) {
    const Collective some =
        AllToAll(cluster, all, 1e6, [part](int from, int to) { return (to - from + 8) % 3 == part; });
    for (const LinkUse& use : some.uses) sent[static_cast<size_t>(use.link)] += use.bytes;
  }
  for (const LinkUse& use : AllToAll(cluster, all, 1e6).uses)
    EXPECT_DOUBLE_EQ(sent[static_cast<size_t>(use.link)], use.bytes);
  EXPECT_TRUE(AllToAll(cluster, all, 1e6, [](int from, int to) { return from == to; }).uses.empty())
      << "its own rows travel nowhere";
}

TEST(ClusterTest, MessagesMayDiffer) {
  Cluster cluster = Ranks(4, 2);
  cluster.node_bytes_per_s = 1e6;
  cluster.node_latency_s = 0.5;
  // Rank 0 sends 1 and 3 MB to the other node, rank 3 one back to rank 0 and one to its neighbour.
  const std::vector<std::vector<double>> sent = {{9e6, 0, 1e6, 3e6}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1e6, 0, 1e6, 0}};
  const Collective collective = AllToAll(cluster, {0, 1, 2, 3}, [&](int from, int to) {
    return sent[static_cast<size_t>(from)][static_cast<size_t>(to)];
  });
  EXPECT_DOUBLE_EQ(SecondsAlone(cluster, collective), 4 + 2 * 0.5) << "a node's link, and two messages of one rank";
}

// Bytes over a link of 1e6 a second, by the formulas of papers.md, "Parm" (PAPERS.md).
TEST(ProgramCostsTest, BytesOfParm) {
  for (const auto& [ranks, copies, shards] : std::vector<std::array<int, 3>>{
           {8, 1, 1}, {8, 2, 2}, {8, 2, 4}, {8, 4, 2}, {8, 4, 4}, {16, 1, 4}, {16, 4, 1}, {4, 4, 4}}) {
    const Cluster cluster = Ranks(ranks);
    for (const double rows : {1.0, 1.2, 2.4}) {
      MoeLayerShape shape = kShape;
      shape.rows_per_token = rows;
      const double tokens = shape.tokens * shape.hidden / 1e6, choices = tokens * rows;
      const double experts = static_cast<double>(ranks) / shards;
      const double baseline =
          (shards - 1) * tokens + 2 * (shards - 1) * choices + 2 * (1 - 1 / experts) * shards * choices;
      const double all_to_alls = 2 * (1 - 1.0 / ranks) * choices * shards / copies;
      const double s1 = all_to_alls + (1 - 1.0 / copies) * tokens, s2 = all_to_alls + (1 - 1.0 / copies) * choices;
      const MoeMesh mesh = {.shards = shards, .copies = copies};
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const auto seconds = [&](ParmKind kind, int parts = 1) {
          return Seconds(cluster, mesh, shape, BuildParm({.kind = kind, .parts = parts, .trains = true}), pass);
        };
        EXPECT_NEAR(seconds(ParmKind::kBaseline), baseline, 1e-9) << ranks << " " << copies << " " << shards;
        EXPECT_NEAR(seconds(ParmKind::kS1), s1, 1e-9) << ranks << " " << copies << " " << shards;
        EXPECT_NEAR(seconds(ParmKind::kS2), s2, 1e-9) << ranks << " " << copies << " " << shards;
        // On one link parts that are under way together take as long as one after the other.
        EXPECT_NEAR(seconds(ParmKind::kS2, ranks), s2, 1e-9) << ranks << " " << copies << " " << shards;
      }
    }
  }
}

TEST(ProgramCostsTest, BytesOfSlicing) {
  const Cluster cluster = Ranks(8);
  const MoeMesh mesh = {.copies = 4};
  const double tokens = kShape.tokens * kShape.hidden / 1e6;
  MoeLayerShape shape = kShape;
  shape.rows_per_token = 2;
  EXPECT_NEAR(Seconds(cluster, mesh, shape, pipeline::BuildSliced({.sums = true})), 2 * 0.75 * tokens, 1e-9);
  // K/2 of the sum's bytes.
  EXPECT_NEAR(Seconds(cluster, mesh, shape, pipeline::BuildSliced({})), 0.75 * 2 * tokens, 1e-9);
  shape.rows_per_token = 1;
  EXPECT_NEAR(Seconds(cluster, mesh, shape, pipeline::BuildSliced({})), 0.75 * tokens, 1e-9);
}

// The sequences of MPMoE's Table: with chunks experts run under messages; messages alone bound it, or experts do.
// The workers' layers of 16 bits: copies gather and add their tokens in fp32, all else has the model's elements.
TEST(ProgramCostsTest, SomeGathersAndSumsHaveLongerElements) {
  MoeLayerShape shape = kShape;
  shape.rows_per_token = 2;
  shape.token_bytes = 2;
  const Cluster cluster = Ranks(8);
  const double tokens = 0.0096;  // seconds of 960 rows of 10 bytes
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto seconds = [&](const MoeMesh& mesh, const MoeSchedule& schedule) {
      return Seconds(cluster, mesh, shape, schedule, pass);
    };
    // A sum of four copies' tokens: 2 x 3/4 of them, twice as long; a gather of choices: 3/4 of them, two a token.
    EXPECT_NEAR(seconds({.copies = 4}, pipeline::BuildSliced({.sums = true, .trains = true})), 3 * tokens, 1e-9);
    EXPECT_NEAR(seconds({.copies = 4}, pipeline::BuildSliced({.trains = true})), 1.5 * tokens, 1e-9);
    // Two all-to-alls of 7/8 of two shards' rows for half of the tokens, then half of the tokens, or of their choices.
    const double all_to_alls = 2 * 7.0 / 8 * 2 * tokens;
    EXPECT_NEAR(seconds({.shards = 2, .copies = 2}, BuildParm({.kind = ParmKind::kS1, .trains = true})),
                all_to_alls + tokens, 1e-9);
    EXPECT_NEAR(seconds({.shards = 2, .copies = 2}, BuildParm({.kind = ParmKind::kS2, .trains = true})),
                all_to_alls + tokens, 1e-9);
    // Its gather among shards and their sum are of rows of the model.
    EXPECT_NEAR(seconds({.shards = 2, .copies = 2}, BuildParm({.trains = true})),
                (1 + 2 * 2 + 2 * 3.0 / 4 * 2 * 2) * tokens, 1e-9);
    MoeLayerShape fp16 = shape;
    fp16.shard_sum_bytes = 2;
    EXPECT_NEAR(Seconds(cluster, {.shards = 2, .copies = 2}, fp16, BuildParm({.trains = true}), pass),
                (1 + 2 * 2 * 2 + 2 * 3.0 / 4 * 2 * 2) * tokens, 1e-9);
  }
}

TEST(ProgramCostsTest, ChunksHideExpertsBehindMessages) {
  Cluster cluster = Ranks(4);
  // A dispatch takes 3/4 of 9.6 ms; experts as long.
  const double dispatch = 0.75 * 960 * 10 / 1e6;
  cluster.flops = 960 * 4 * 10 * 40 / dispatch;
  EXPECT_NEAR(Seconds(cluster, {}, kShape, BuildExpertParallel({})), 3 * dispatch, 1e-9);
  for (const int n : {2, 4, 8}) {
    for (const bool first : {false, true}) {
      const MoeSchedule schedule = BuildExpertParallel({.micro_batches = n, .dispatch_first = first});
      EXPECT_NEAR(Seconds(cluster, {}, kShape, schedule), 2 * dispatch, 1e-9) << n << " " << first;
    }
  }
  cluster.flops /= 4;  // experts take four times as long
  EXPECT_NEAR(Seconds(cluster, {}, kShape, BuildExpertParallel({.micro_batches = 4})), (4 + 0.25 + 0.25) * dispatch,
              1e-9);
}

// FasterMoE's chunks: a node's own ranks, then the other node's.  Apart, they share what links have.
TEST(ProgramCostsTest, ChunksCutByPeers) {
  Cluster cluster = Ranks(8, 4);
  const MoeSchedule schedule =
      BuildExpertParallel({.micro_batches = 2, .dispatch_first = true, .cut = pipeline::Cut::kPeers});
  const double row = 960 * 10 / 8 / 1e6;  // seconds of a message over a rank's link
  // Three messages each within the node, then four between nodes, whose link has as many ranks' and twice the
  // bandwidth.
  EXPECT_NEAR(Seconds(cluster, {}, kShape, schedule), 2 * (3 + 4 * 4 / 2) * row, 1e-9);
  // Rows come back from where they went.
  const MoeSchedule four = BuildExpertParallel({.micro_batches = 4, .cut = pipeline::Cut::kPeers});
  const ProgramCosts costs(cluster, {}, kShape, four, Pass::kForward);
  for (const pipeline::MicroOp& op : four.forward) {
    if (op.kind != pipeline::MicroOpKind::kDispatch) continue;
    pipeline::MicroOp combine = op;
    combine.kind = pipeline::MicroOpKind::kCombine;
    for (int from = 0; from < 8; ++from) {
      for (int to = 0; to < 8; ++to) {
        EXPECT_EQ(costs.Reaches(op, from, to), (to / 2 - from / 2 + 4) % 4 == op.chunk);
        EXPECT_EQ(costs.Reaches(combine, to, from), costs.Reaches(op, from, to));
      }
    }
  }
  cluster.peers_apart = true;
  EXPECT_LT(Seconds(cluster, {}, kShape, schedule), 2 * (3 + 4 * 4 / 2) * row);
  EXPECT_GE(Seconds(cluster, {}, kShape, schedule), 2 * (4 * 4 / 2) * row - 1e-9);
}

TEST(ProgramCostsTest, RowsThatAreRestoredTakeTheirTime) {
  Cluster cluster = Ranks(4);
  cluster.copy_bytes_per_s = 1e3;  // so that copies are all there is: 9.6 KB of input, 38.4 of hidden rows
  const auto schedule = [](pipeline::RestoreStrategy restore) {
    return BuildExpertParallel({.trains = true, .restore = restore});
  };
  const double both =
      Seconds(cluster, {}, kShape, schedule({pipeline::InputRestore::kOffload, pipeline::HiddenRestore::kOffload}));
  EXPECT_NEAR(both, 9.6 + 38.4, 0.05);
  const MoeSchedule again = schedule({pipeline::InputRestore::kResend, pipeline::HiddenRestore::kRecompute});
  EXPECT_NEAR(Seconds(cluster, {}, kShape, again, Pass::kBackward), 3 * 0.75 * 960 * 10 / 1e6, 1e-9);
}

TEST(ProgramCostsTest, RefusesAMeshThatDoesNotFit) {
  EXPECT_EQ(InputOfLayer(Ranks(6), {.shards = 4}, kShape, BuildExpertParallel({}), Pass::kForward).status().message(),
            "mesh: 6 ranks in groups of 4 shards");
  EXPECT_EQ(InputOfLayer(Ranks(6), {.copies = 0}, kShape, BuildExpertParallel({}), Pass::kForward).status().message(),
            "mesh: 6 ranks in groups of 0 copies");
  EXPECT_EQ(InputOfLayer(Ranks(6), {.shards = 2}, kShape, BuildExpertParallel({}), Pass::kForward).status().message(),
            "mesh: 2 shards, which expert_parallel does not add");
  const MoeSchedule peers = BuildExpertParallel({.micro_batches = 4, .cut = pipeline::Cut::kPeers});
  EXPECT_EQ(InputOfLayer(Ranks(6), {}, kShape, peers, Pass::kForward).status().message(), "mesh: 6 peers in 4 chunks");
}

}  // namespace
}  // namespace switchyard::simulator
