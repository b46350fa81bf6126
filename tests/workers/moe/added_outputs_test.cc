// --combine=added: a rank's outputs of a row are added before they travel.
#include "workers/moe/dispatch/added_outputs.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/moe_run.h"

namespace switchyard::moe {
namespace {

using test::MoeResult;
using test::MoeRun;
using test::MoeShape;
using testing::HasSubstr;

MoeRun RunOf(const MoeShape& shape, std::vector<int64_t> rank_rows) {
  const int world = static_cast<int>(rank_rows.size());
  return {.layout = ExpertLayout::Contiguous(shape.num_experts, world),
          .rank_rows = std::move(rank_rows),
          .add_outputs = true};
}

double ElementOf(const std::string& residual, DType dtype, size_t i) {
  if (dtype == DType::kF64) {
    double value;
    std::memcpy(&value, residual.data() + i * 8, 8);
    return value;
  }
  float value;
  std::memcpy(&value, residual.data() + i * 4, 4);
  return value;
}

class AddedOutputsTest : public testing::TestWithParam<MoeShape> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, AddedOutputsTest,
    testing::Values(MoeShape{.num_experts = 8, .top_k = 2, .dtype = DType::kBf16},
                    MoeShape{.num_experts = 5, .top_k = 3, .dtype = DType::kF32},
                    MoeShape{.num_experts = 2, .top_k = 1, .dtype = DType::kF64},
                    MoeShape{.num_experts = 16, .top_k = 8, .dtype = DType::kF64},
                    MoeShape{.num_experts = 16, .top_k = 8, .dtype = DType::kBf16},
                    MoeShape{
                        .num_experts = 7, .top_k = 4, .shared_ffn = 32, .renormalize = false, .dtype = DType::kF32},
                    MoeShape{.num_experts = 4, .top_k = 2, .shared_ffn = 32, .dtype = DType::kF16}),
    [](const auto& info) {
      return absl::StrCat(DTypeName(info.param.dtype), "_", info.param.num_experts, "_experts_top_", info.param.top_k,
                          info.param.shared_ffn > 0 ? "_shared" : "");
    });

TEST_P(AddedOutputsTest, IsTheDefinitionButForRoundings) {
  const MoeShape& shape = GetParam();
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(17, 3), residual = model.RandomResidual(17, 4);
  const std::vector<double> expected = model.Naive(x, residual);
  const double tolerance = shape.dtype == DType::kF64    ? 1e-12
                           : shape.dtype == DType::kF32  ? 1e-5
                           : shape.dtype == DType::kBf16 ? 4e-2
                                                         : 5e-3;
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{17}, {9, 8}, {4, 6, 0, 7}}) {
    const auto result = test::RunMoe(model, RunOf(shape, rows), x, residual);
    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; i < expected.size(); ++i) {
      const double actual = ElementOf(result->residual, shape.dtype, i);
      ASSERT_NEAR(actual, expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
    }
  }
}

// Not on the rank that has them, on parts, transport, or rows beside them.
TEST_P(AddedOutputsTest, BitsDependOnNothingButWhichExpertsLieTogether) {
  const MoeShape& shape = GetParam();
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(17, 5), residual = model.RandomResidual(17, 6);
  const auto first = test::RunMoe(model, RunOf(shape, {9, 8}), x, residual, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{17, 0}, {0, 17}, {3, 14}}) {
    for (const int micro_batches : {1, 3}) {
      MoeRun run = RunOf(shape, rows);
      run.micro_batches = micro_batches;
      run.backend = micro_batches == 1 ? test::Backend::kSocket : test::Backend::kLocal;
      const auto result = test::RunMoe(model, run, x, residual, 2);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->residual == first->residual) << rows[0] << " rows on rank 0, " << micro_batches << " parts";
      EXPECT_EQ(result->ledgers[0], result->ledgers[1]);
    }
  }
  // The rows of rank 1 alone.
  const auto some = test::RunMoe(model, RunOf(shape, {0, 8}), x.view().Rows(9, 8), residual.view().Rows(9, 8), 2);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_TRUE(some->residual == first->residual.substr(first->residual.size() - some->residual.size()));
}

TEST_P(AddedOutputsTest, OneRankHasTheExactBits) {
  const MoeShape& shape = GetParam();
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(17, 5), residual = model.RandomResidual(17, 6);
  MoeRun run = RunOf(shape, {17});
  const auto added = test::RunMoe(model, run, x, residual);
  run.add_outputs = false;
  const auto exact = test::RunMoe(model, run, x, residual);
  ASSERT_TRUE(added.ok() && exact.ok());
  EXPECT_TRUE(added->residual == exact->residual);
}

TEST(AddedOutputsBytesTest, OneRowComesBackWhereEightWereAsked) {
  const MoeShape shape = {.num_experts = 16, .top_k = 8, .dtype = DType::kBf16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(64, 5), residual = model.RandomResidual(64, 6);
  MoeRun run = RunOf(shape, {64, 0});
  const auto added = test::RunMoe(model, run, x, residual);
  run.add_outputs = false;
  const auto exact = test::RunMoe(model, run, x, residual);
  ASSERT_TRUE(added.ok() && exact.ok());
  const int64_t row = shape.hidden * 2, rows = added->stats[0].hidden_rows_sent, pairs = added->stats[0].rows_sent;
  EXPECT_EQ(exact->stats[1].bytes_sent, pairs * row) << "an output for each choice";
  EXPECT_EQ(added->stats[1].bytes_sent, rows * row) << "one for each row";
  EXPECT_GT(pairs, 3 * rows);
  EXPECT_NEAR(static_cast<double>(added->stats[0].bytes_sent),
              static_cast<double>(exact->stats[0].bytes_sent + pairs * 4), 64)
      << "with a weight for each choice";
}

// A peer's message is read before its pairs of one row are counted.
TEST(AddedOutputsFaultTest, MoreExpertsForARowThanItHasChoices) {
  HostRoutes routes;
  routes.outgoing.resize(2);
  routes.incoming.resize(2);
  HostRoutes::Incoming& from = routes.incoming[1];
  from.num_rows = 2;
  from.row = {0, 1, 1, 1};
  from.slot = {0, 0, 1, 2};
  from.y_row = {0, 1, 2, 3};
  ThreadPool pool(1);
  const Tensor weight(DType::kF32, {0, 2});
  AddedOutputs added;
  added.Begin(routes, 0, weight);
  const std::vector<float> ones(4, 1.0F);
  added.TakeWeights(1, absl::MakeConstSpan(reinterpret_cast<const char*>(ones.data()), 16));
  const Tensor y = Tensor::Zeros(DType::kBf16, {4, 32}), answer = Tensor::Zeros(DType::kBf16, {2, 32});
  const absl::Status status = added.Add(Stream::OnCpu(&pool), 1, y, answer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 wants more than 2 experts for row 1"));
}

}  // namespace
}  // namespace switchyard::moe
