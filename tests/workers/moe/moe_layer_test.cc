// The MoE layer against its definition, and the same bits on any number of ranks, chunks and replicas, with every kind
// of exchange.
#include "workers/moe/layer/moe_layer.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/moe_run.h"

namespace switchyard::moe {
namespace {

using test::Backend;
using test::ExchangeKind;
using test::MoeResult;
using test::MoeRun;
using test::MoeShape;
using test::MoeTestModel;

test::MoeRun Alone(const test::MoeShape& shape, int64_t rows) {
  return {.layout = ExpertLayout::Contiguous(shape.num_experts, 1), .rank_rows = {rows}};
}

std::string Name(const test::MoeShape& shape) {
  return absl::StrCat(DTypeName(shape.dtype), "_E", shape.num_experts, "_K", shape.top_k,
                      shape.shared_ffn > 0 ? "_shared" : "", shape.shared_gate ? "" : "_ungated",
                      shape.renormalize ? "" : "_raw");
}

class MoeReferenceTest : public testing::TestWithParam<test::MoeShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, MoeReferenceTest,
                         testing::Values(test::MoeShape{.dtype = DType::kF32}, test::MoeShape{.dtype = DType::kF64},
                                         test::MoeShape{.dtype = DType::kBf16}, test::MoeShape{.dtype = DType::kF16},
                                         test::MoeShape{.num_experts = 5, .top_k = 1},
                                         test::MoeShape{.num_experts = 16, .top_k = 8, .renormalize = false},
                                         test::MoeShape{.shared_ffn = 80, .renormalize = false},
                                         test::MoeShape{.shared_ffn = 80, .shared_gate = false, .dtype = DType::kF64}),
                         [](const auto& i) { return Name(i.param); });

TEST_P(MoeReferenceTest, IsTheDefinition) {
  const test::MoeShape& shape = GetParam();
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(17, 3);
  const Tensor residual = model.RandomResidual(17, 4);
  const auto result = test::RunMoe(model, Alone(shape, 17), x, residual);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<double> expected = model.Naive(x, residual);
  const double tolerance = shape.dtype == DType::kF64    ? 1e-12
                           : shape.dtype == DType::kF32  ? 1e-5
                           : shape.dtype == DType::kBf16 ? 4e-2
                                                         : 5e-3;
  for (size_t i = 0; i < expected.size(); ++i) {
    double actual;
    if (shape.dtype == DType::kF64) {
      std::memcpy(&actual, result->residual.data() + i * 8, 8);
    } else {
      float value;
      std::memcpy(&value, result->residual.data() + i * 4, 4);
      actual = value;
    }
    ASSERT_NEAR(actual, expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
  }
}

struct Spread {
  test::Backend backend = test::Backend::kLocal;
  test::MoeShape shape;
  std::vector<int64_t> rank_rows;
  int micro_batches = 1;
  test::ExchangeKind exchange = test::ExchangeKind::kHost;
};

std::string SpreadName(const Spread& s) {
  std::string name =
      absl::StrCat(test::ExchangeName(s.exchange), "_", test::BackendName(s.backend), "_", Name(s.shape), "_rows");
  for (const int64_t rows : s.rank_rows) absl::StrAppend(&name, "_", rows);
  return absl::StrCat(name, "_micro", s.micro_batches);
}

class MoeSamenessTest : public testing::TestWithParam<Spread> {};

std::vector<Spread> Spreads() {
  std::vector<Spread> spreads;
  const std::vector<std::vector<int64_t>> rows = {{9, 8},     {0, 17},      {5, 7, 5},
                                                  {17, 0, 0}, {4, 6, 0, 7}, {3, 3, 3, 3, 3, 2}};
  const std::vector<test::MoeShape> shapes = {
      {.num_experts = 8, .top_k = 2, .dtype = DType::kBf16},
      {.num_experts = 5, .top_k = 3, .dtype = DType::kF32},
      {.num_experts = 2, .top_k = 1, .dtype = DType::kF64},
      {.num_experts = 16, .top_k = 8, .dtype = DType::kBf16},
      {.num_experts = 7, .top_k = 4, .shared_ffn = 32, .renormalize = false, .dtype = DType::kF32},
      {.num_experts = 4, .top_k = 2, .shared_ffn = 32, .dtype = DType::kF16}};
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      for (const int micro_batches : {1, 2, 5}) {
        for (const test::ExchangeKind kind : test::kExchangeKinds) {
          spreads.push_back({test::Backend::kLocal, shapes[s], rows[r], micro_batches, kind});
          if ((r + s + micro_batches) % 9 != static_cast<size_t>(kind)) continue;
          spreads.push_back({test::Backend::kSocket, shapes[s], rows[r], micro_batches, kind});
        }
      }
    }
  }
  return spreads;
}

INSTANTIATE_TEST_SUITE_P(Spreads, MoeSamenessTest, testing::ValuesIn(Spreads()),
                         [](const auto& i) { return SpreadName(i.param); });

TEST_P(MoeSamenessTest, TheBitsOfOneRank) {
  const Spread& spread = GetParam();
  const test::MoeTestModel model(spread.shape);
  const Tensor x = model.RandomRows(17, 5);
  const Tensor residual = model.RandomResidual(17, 6);
  const auto alone = test::RunMoe(model, Alone(spread.shape, 17), x, residual, 3);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const int world = static_cast<int>(spread.rank_rows.size());
  const test::MoeRun run{.backend = spread.backend,
                         .layout = ExpertLayout::Contiguous(spread.shape.num_experts, world),
                         .rank_rows = spread.rank_rows,
                         .micro_batches = spread.micro_batches,
                         .exchange = spread.exchange};
  const auto result = test::RunMoe(model, run, x, residual, 3);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->residual == alone->residual);
  for (const uint64_t ledger : result->ledgers) EXPECT_EQ(ledger, result->ledgers[0]);

  // The exchanged rows are those of the routing.
  int64_t sent = 0, received = 0, computed = 0;
  std::vector<int64_t> counts(alone->expert_counts[0].size(), 0);
  for (const MoeStats& stats : result->stats) {
    sent += stats.rows_sent;
    received += stats.rows_received;
    computed += stats.expert_rows;
    EXPECT_LE(stats.hidden_rows_sent, stats.rows_sent);
  }
  for (const std::vector<int64_t>& of_rank : result->expert_counts) {
    ASSERT_EQ(of_rank.size(), counts.size());
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += of_rank[i];
  }
  EXPECT_EQ(sent, received);
  // In the padded mode the host knows nothing but sizes.
  const bool bounded = spread.exchange == test::ExchangeKind::kPadded;
  EXPECT_EQ(computed, bounded ? 0 : 3 * 17 * spread.shape.top_k);
  EXPECT_EQ(counts, alone->expert_counts[0]);
  EXPECT_EQ(alone->stats[0].rows_sent, 0);
  EXPECT_EQ(alone->stats[0].bytes_sent, 0);
}

class MoeLayerTest : public testing::TestWithParam<test::ExchangeKind> {};

INSTANTIATE_TEST_SUITE_P(Exchanges, MoeLayerTest, testing::ValuesIn(test::kExchangeKinds),
                         [](const auto& i) { return test::ExchangeName(i.param); });

TEST_P(MoeLayerTest, OneExpertTakesAll) {
  const test::MoeShape shape{.num_experts = 6, .top_k = 1};
  test::MoeTestModel model(shape);
  model.FavourExpert(4);  // on the last of three ranks
  const Tensor x = model.RandomRows(30, 7);
  const Tensor residual = model.RandomResidual(30, 8);
  const auto alone = test::RunMoe(model, Alone(shape, 30), x, residual);
  const auto spread =
      test::RunMoe(model, {.layout = ExpertLayout::Contiguous(6, 3), .rank_rows = {10, 10, 10}, .exchange = GetParam()},
                   x, residual);
  ASSERT_TRUE(alone.ok() && spread.ok());
  EXPECT_TRUE(alone->residual == spread->residual);
  EXPECT_THAT(alone->expert_counts[0], testing::ElementsAre(0, 0, 0, 0, 30, 0));
  if (GetParam() == test::ExchangeKind::kPadded) return;  // its host sees no counts
  EXPECT_EQ(spread->stats[0].rows_sent, 10);
  EXPECT_EQ(spread->stats[2].rows_sent, 0);
  EXPECT_EQ(spread->stats[2].rows_received, 20);
  EXPECT_EQ(spread->stats[2].expert_rows, 30);
  EXPECT_EQ(spread->stats[1].expert_rows, 0);
  EXPECT_THAT(spread->stats[2].layer_rows, testing::ElementsAre(30));
  EXPECT_THAT(spread->stats[1].layer_rows, testing::ElementsAre(0));
}

// As on a machine that reads an expert's weights in 20 ms, or computes a row in 2.
TEST(MoePaceTest, ExpertsTakeAtLeastSoLong) {
  const test::MoeShape shape{.num_experts = 6, .top_k = 1};
  test::MoeTestModel model(shape);
  model.FavourExpert(4);
  const Tensor x = model.RandomRows(30, 7);
  const Tensor residual = model.RandomResidual(30, 8);
  const auto alone = test::RunMoe(model, Alone(shape, 30), x, residual);
  ASSERT_TRUE(alone.ok());
  for (const int64_t first : {0, 25}) {
    const auto paced = test::RunMoe(model,
                                    {.layout = ExpertLayout::Contiguous(6, 3),
                                     .rank_rows = {30 - first, first, 0},
                                     .pace = {.weights_seconds = 0.02, .row_seconds = 0.002}},
                                    x, residual, 2);
    ASSERT_TRUE(paced.ok());
    EXPECT_GE(paced->stats[2].expert_seconds, 2 * 30 * 0.002);
  }
  const auto few = test::RunMoe(model,
                                {.layout = ExpertLayout::Contiguous(6, 1),
                                 .rank_rows = {3},
                                 .pace = {.weights_seconds = 0.02, .row_seconds = 0.002}},
                                x.view().Rows(0, 3), residual.view().Rows(0, 3));
  ASSERT_TRUE(few.ok());
  EXPECT_GE(few->stats[0].expert_seconds, 0.02);
  EXPECT_EQ(few->residual, alone->residual.substr(0, few->residual.size()));
}

TEST_P(MoeLayerTest, ATokenTravelsOncePerRank) {
  const test::MoeShape shape{.num_experts = 8, .top_k = 8};  // every token wants every expert
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(12, 9);
  const Tensor residual = model.RandomResidual(12, 10);
  const auto result = test::RunMoe(
      model, {.layout = ExpertLayout::Contiguous(8, 2), .rank_rows = {8, 4}, .exchange = GetParam()}, x, residual);
  ASSERT_TRUE(result.ok()) << result.status();
  const int64_t row_bytes = 64 * 4;
  if (GetParam() == test::ExchangeKind::kPadded) {
    // For 10 rows at most: 10 hidden rows, 2 rows of heads and pairs, 40 outputs; on either rank.
    for (const MoeStats& stats : result->stats) EXPECT_EQ(stats.bytes_sent, (10 + 2 + 10 * 4) * row_bytes);
    return;
  }
  EXPECT_EQ(result->stats[0].rows_sent, 8 * 4);
  EXPECT_EQ(result->stats[0].hidden_rows_sent, 8);
  EXPECT_EQ(result->stats[1].rows_sent, 4 * 4);
  EXPECT_EQ(result->stats[1].hidden_rows_sent, 4);
}

TEST_P(MoeLayerTest, ReplicasDoNotChangeBits) {
  const test::MoeShape shape{.num_experts = 6, .top_k = 3, .dtype = DType::kBf16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(20, 11);
  const Tensor residual = model.RandomResidual(20, 12);
  const auto alone = test::RunMoe(model, Alone(shape, 20), x, residual);
  ASSERT_TRUE(alone.ok());
  // Out of order, experts 1 and 4 twice, expert 2 everywhere.
  const std::vector<std::vector<int32_t>> residents = {{2, 0, 1}, {4, 2, 3}, {1, 5, 2, 4}};
  for (const bool balanced : {false, true}) {
    for (const int micro_batches : {1, 3}) {
      const auto result = test::RunMoe(model,
                                       {.layout = ExpertLayout::FromResidents(6, residents),
                                        .rank_rows = {9, 4, 7},
                                        .micro_batches = micro_batches,
                                        .exchange = GetParam(),
                                        .balanced = balanced},
                                       x, residual);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->residual == alone->residual);
    }
  }
}

// One expert takes nearly all: its replicas share its rows, by the counts, and nothing that comes out changes.
TEST(BalancedMoeLayerTest, TheBusiestRankIsAsIdleAsReplicasAllow) {
  const test::MoeShape shape{.num_experts = 6, .top_k = 1, .dtype = DType::kBf16};
  test::MoeTestModel model(shape);
  model.FavourExpert(2);
  const Tensor x = model.RandomRows(21, 11);
  const Tensor residual = model.RandomResidual(21, 12);
  const auto alone = test::RunMoe(model, Alone(shape, 21), x, residual);
  ASSERT_TRUE(alone.ok());
  const std::vector<std::vector<int32_t>> residents = {{2, 0, 1}, {4, 2, 3}, {1, 5, 2, 4}};
  for (const int micro_batches : {1, 3}) {
    // Rank 1 has no rows of its own, so two of three must travel there.
    for (const std::vector<int64_t>& rank_rows : {std::vector<int64_t>{21, 0, 0}, {9, 4, 8}, {0, 0, 21}}) {
      for (const test::ExchangeKind exchange : {test::ExchangeKind::kHost, test::ExchangeKind::kDeviceExact}) {
        const auto result = test::RunMoe(model,
                                         {.layout = ExpertLayout::FromResidents(6, residents),
                                          .rank_rows = rank_rows,
                                          .micro_batches = micro_batches,
                                          .exchange = exchange,
                                          .balanced = true},
                                         x, residual);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_TRUE(result->residual == alone->residual);
        for (const MoeStats& stats : result->stats) EXPECT_EQ(stats.expert_rows, 7);
        EXPECT_EQ(result->ledgers[0], result->ledgers[2]);
      }
    }
  }
}

TEST_P(MoeLayerTest, NoRowsAnywhere) {
  const test::MoeShape shape{.shared_ffn = 16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(0, 1);
  const Tensor residual = model.RandomResidual(0, 1);
  const auto result = test::RunMoe(
      model,
      {.layout = ExpertLayout::Contiguous(8, 2), .rank_rows = {0, 0}, .micro_batches = 2, .exchange = GetParam()}, x,
      residual);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->stats[0].expert_rows, 0);
}

// Rows of several hundred KB cross the boundary of posted buffers.
TEST_P(MoeLayerTest, ManyRowsOverSockets) {
  const test::MoeShape shape{.hidden = 512, .ffn = 32, .num_experts = 9, .top_k = 4, .dtype = DType::kBf16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(700, 13);
  const Tensor residual = model.RandomResidual(700, 14);
  const auto alone = test::RunMoe(model, Alone(shape, 700), x, residual, 2);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const int micro_batches : {1, 4}) {
    const auto result = test::RunMoe(model,
                                     {.backend = test::Backend::kSocket,
                                      .layout = ExpertLayout::Contiguous(9, 2),
                                      .rank_rows = {500, 200},
                                      .micro_batches = micro_batches,
                                      .exchange = GetParam()},
                                     x, residual, 2);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->residual == alone->residual);
  }
}

}  // namespace
}  // namespace switchyard::moe
