// The backward of a MoE layer against its definition and against differences of its forward, and the same on any number
// of ranks, chunks and threads.
#include "workers/moe/layer/moe_backward.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/moe/moe_training.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::Backend;
using test::MoeShape;
using test::MoeSpread;
using test::MoeTestModel;
using test::MoeTrainingResult;
using test::MoeTrainingRun;
using testing::HasSubstr;

constexpr int64_t kRows = 17;

test::MoeTrainingRun Alone(const test::MoeShape& shape) {
  test::MoeTrainingRun training;
  training.run.layout = ExpertLayout::Contiguous(shape.num_experts, 1);
  training.run.rank_rows = {kRows};
  return training;
}

// The tolerance, as a share of the largest expected value.
void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest + 1e-300) << what << " element " << i;
  }
}

void ExpectNear(const reference::MoeMatrices& actual, const reference::MoeMatrices& expected, double tolerance) {
  ExpectNear(actual.router, expected.router, tolerance, "router");
  for (size_t e = 0; e < expected.gate_up.size(); ++e) {
    ExpectNear(actual.gate_up[e], expected.gate_up[e], tolerance, absl::StrCat("gate_up ", e));
    ExpectNear(actual.down[e], expected.down[e], tolerance, absl::StrCat("down ", e));
  }
  ExpectNear(actual.shared_gate_up, expected.shared_gate_up, tolerance, "shared_gate_up");
  ExpectNear(actual.shared_down, expected.shared_down, tolerance, "shared_down");
  ExpectNear(actual.shared_gate, expected.shared_gate, tolerance, "shared_gate");
}

double ToleranceOf(DType dtype) {
  return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 1e-5 : dtype == DType::kBf16 ? 4e-2 : 5e-3;
}

std::vector<double> ProbGradient(int experts) {
  std::vector<double> gradient;
  for (int e = 0; e < experts; ++e) gradient.push_back(0.3 * e - 0.5);
  return gradient;
}

std::string Name(const test::MoeShape& shape) {
  return absl::StrCat(DTypeName(shape.dtype), "_E", shape.num_experts, "_K", shape.top_k, "_F", shape.ffn,
                      shape.shared_ffn > 0 ? "_shared" : "", shape.shared_gate ? "" : "_ungated",
                      shape.renormalize ? "" : "_raw");
}

class MoeBackwardReferenceTest : public testing::TestWithParam<test::MoeShape> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, MoeBackwardReferenceTest,
    testing::Values(
        test::MoeShape{.dtype = DType::kF64}, test::MoeShape{.dtype = DType::kF32},
        test::MoeShape{.dtype = DType::kBf16}, test::MoeShape{.shared_ffn = 32, .dtype = DType::kF16},
        test::MoeShape{
            .hidden = 20, .ffn = 13, .num_experts = 5, .top_k = 1, .renormalize = false, .dtype = DType::kF64},
        test::MoeShape{.num_experts = 16, .top_k = 8, .renormalize = false},
        test::MoeShape{.shared_ffn = 80, .renormalize = false, .dtype = DType::kF64},
        test::MoeShape{.shared_ffn = 24, .dtype = DType::kBf16},
        test::MoeShape{.shared_ffn = 80, .shared_gate = false, .dtype = DType::kF64}),
    [](const auto& i) { return Name(i.param); });

TEST_P(MoeBackwardReferenceTest, IsTheDefinition) {
  const test::MoeTestModel model(GetParam());
  const Tensor x = model.RandomRows(kRows, 3), residual = model.RandomResidual(kRows, 4);
  const Tensor dy = model.RandomResidual(kRows, 5);
  const double tolerance = ToleranceOf(GetParam().dtype);
  for (const bool losses : {false, true}) {
    test::MoeTrainingRun training = Alone(GetParam());
    training.d_x_in_acc = losses;
    if (losses) training.prob_gradient = ProbGradient(GetParam().num_experts);
    if (losses) training.z_scale = 0.25;
    const auto result = test::TrainMoe(model, training, x, residual, dy);
    ASSERT_TRUE(result.ok()) << result.status();
    const reference::MoeAnswer expected = reference::MoeBackward(test::ProblemOf(model, training, x, dy));
    ASSERT_NO_FATAL_FAILURE(ExpectNear(result->d_x_values, expected.dx, tolerance, "d_x"));
    ASSERT_NO_FATAL_FAILURE(ExpectNear(result->gradients, expected.gradients, tolerance));
    // Saving changed nothing of the forward pass.
    EXPECT_TRUE(result->residual == test::RunMoe(model, training.run, x, residual)->residual);
  }
}

// The loss whose gradient is looked for, of the real forward: Σ dy · residual, and what the router's own losses are.
double LossOf(const test::MoeTestModel& model, const test::MoeTrainingRun& training, const Tensor& x,
              const Tensor& dy) {
  const Tensor zeros = Tensor::Zeros(DType::kF64, dy.shape());
  const std::string after = test::RunMoe(model, training.run, x, zeros)->residual;
  const double* const y = reinterpret_cast<const double*>(after.data());
  double loss = 0;
  for (int64_t i = 0; i < dy.view().NumElements(); ++i) loss += dy.data<double>()[i] * y[i];
  const reference::MoeProblem problem = test::ProblemOf(model, training, x, dy);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const auto row = problem.x.begin() + t * problem.hidden;
    const reference::MoeGate gate = reference::Gate(problem, {row, row + problem.hidden});
    loss += reference::Dot(problem.prob_gradient, gate.p) + problem.z_scale * gate.logsumexp * gate.logsumexp;
  }
  return loss;
}

// Differences of the real forward pass, in steps to both sides of a few elements of every matrix and of x.
TEST(MoeBackwardTest, IsTheDifferenceOfForwards) {
  const test::MoeShape shape = {
      .hidden = 12, .ffn = 6, .num_experts = 4, .top_k = 2, .shared_ffn = 5, .dtype = DType::kF64};
  test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(5, 3), residual = model.RandomResidual(5, 4), dy = model.RandomResidual(5, 5);
  test::MoeTrainingRun training = Alone(shape);
  training.run.rank_rows = {5};
  training.prob_gradient = ProbGradient(4);
  training.z_scale = 0.25;
  const auto result = test::TrainMoe(model, training, x, residual, dy);
  ASSERT_TRUE(result.ok()) << result.status();
  constexpr double kStep = 1e-5;
  const reference::MoeMatrices matrices = model.Matrices();
  const auto expect = [&](const char* what, auto matrix_of) {
    reference::MoeMatrices moved = matrices;
    std::vector<double>& values = matrix_of(&moved);
    reference::MoeMatrices gradients = result->gradients;
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 6) {
      const double value = values[i];
      double loss[2];
      for (const int side : {0, 1}) {
        values[i] = value + (side == 0 ? -kStep : kStep);
        model.SetMatrices(moved);
        loss[side] = LossOf(model, training, x, dy);
      }
      values[i] = value;
      EXPECT_NEAR(matrix_of(&gradients)[i], (loss[1] - loss[0]) / (2 * kStep), 1e-7) << what << " element " << i;
    }
    model.SetMatrices(matrices);
  };
  expect("router", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->router; });
  expect("gate_up", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->gate_up[1]; });
  expect("down", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->down[2]; });
  expect("shared_gate_up", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->shared_gate_up; });
  expect("shared_down", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->shared_down; });
  expect("shared_gate", [](reference::MoeMatrices* m) -> std::vector<double>& { return m->shared_gate; });
  for (int64_t i = 0; i < x.view().NumElements(); i += 7) {
    double& value = x.data<double>()[i];
    const double at = value;
    value = at - kStep;
    const double below = LossOf(model, training, x, dy);
    value = at + kStep;
    const double above = LossOf(model, training, x, dy);
    value = at;
    EXPECT_NEAR(result->d_x_values[static_cast<size_t>(i)], (above - below) / (2 * kStep), 1e-7) << "x element " << i;
  }
}

class MoeBackwardSpreadTest : public testing::TestWithParam<MoeSpread> {};

INSTANTIATE_TEST_SUITE_P(Spreads, MoeBackwardSpreadTest,
                         testing::Values(MoeSpread{"chunks", {17}, 4}, MoeSpread{"two", {9, 8}},
                                         MoeSpread{"two_chunks", {12, 5}, 3}, MoeSpread{"empty_rank", {0, 17}, 2},
                                         MoeSpread{"four", {4, 6, 0, 7}}, MoeSpread{"four_chunks", {1, 2, 5, 9}, 4},
                                         MoeSpread{"two_sockets", {8, 9}, 2, test::Backend::kSocket},
                                         MoeSpread{"four_sockets", {3, 5, 9, 0}, 1, test::Backend::kSocket}),
                         [](const auto& i) { return i.param.name; });

// What comes back to a row is the same bits; sums over rows are the same but for their order.
TEST_P(MoeBackwardSpreadTest, RanksAndChunksChangeNothing) {
  for (const test::MoeShape& shape :
       {test::MoeShape{.shared_ffn = 32, .dtype = DType::kF64}, test::MoeShape{.num_experts = 6, .top_k = 3},
        test::MoeShape{.num_experts = 6, .top_k = 3, .shared_ffn = 16, .dtype = DType::kBf16}}) {
    const test::MoeTestModel model(shape);
    const Tensor x = model.RandomRows(kRows, 6), residual = model.RandomResidual(kRows, 7);
    const Tensor dy = model.RandomResidual(kRows, 8);
    test::MoeTrainingRun training = Alone(shape);
    training.prob_gradient = ProbGradient(shape.num_experts);
    const auto alone = test::TrainMoe(model, training, x, residual, dy, 2);
    ASSERT_TRUE(alone.ok()) << alone.status();
    training.run = GetParam().RunOf(shape.num_experts);
    const auto spread = test::TrainMoe(model, training, x, residual, dy, 2);
    ASSERT_TRUE(spread.ok()) << spread.status();
    EXPECT_TRUE(spread->residual == alone->residual);
    EXPECT_TRUE(spread->d_x == alone->d_x);
    // (Experts' rows are rounded before they are added; that does not depend on the spread either.)
    ASSERT_NO_FATAL_FAILURE(ExpectNear(spread->gradients, alone->gradients, shape.dtype == DType::kF64 ? 1e-12 : 1e-5));
    for (const uint64_t ledger : spread->ledgers) EXPECT_EQ(ledger, spread->ledgers[0]);
  }
}

// Replicas have a part each.
TEST(MoeBackwardTest, PartsOfReplicasAddUp) {
  const test::MoeShape shape = {.num_experts = 6, .top_k = 3, .dtype = DType::kF64};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(kRows, 6), residual = model.RandomResidual(kRows, 7);
  const Tensor dy = model.RandomResidual(kRows, 8);
  const auto alone = test::TrainMoe(model, Alone(shape), x, residual, dy);
  const std::vector<std::vector<int32_t>> residents = {{2, 0, 1}, {4, -1, 2, 3}, {1, 5, 2, 4}};
  test::MoeTrainingRun training = Alone(shape);
  training.run.layout = ExpertLayout::FromResidents(6, residents);
  training.run.rank_rows = {9, 0, 8};
  const auto spread = test::TrainMoe(model, training, x, residual, dy);
  ASSERT_TRUE(alone.ok() && spread.ok()) << alone.status() << spread.status();
  EXPECT_TRUE(spread->d_x == alone->d_x);
  ExpectNear(spread->gradients, alone->gradients, 1e-12);
}

TEST(MoeBackwardTest, ThreadsAndLateRanksChangeNoBit) {
  const test::MoeShape shape = {.num_experts = 6, .top_k = 3, .shared_ffn = 16, .dtype = DType::kBf16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(kRows, 6), residual = model.RandomResidual(kRows, 7);
  const Tensor dy = model.RandomResidual(kRows, 8);
  test::MoeTrainingRun training = Alone(shape);
  training.run.layout = ExpertLayout::Contiguous(6, 2);
  training.run.rank_rows = {9, 8};
  training.run.micro_batches = 2;
  training.threads = 1;
  const auto plain = test::TrainMoe(model, training, x, residual, dy);
  ASSERT_TRUE(plain.ok()) << plain.status();
  training.threads = 3;
  for (const int64_t late : {-1, 4, 6}) {  // 4 and on: of the backward
    training.late = late;
    const auto other = test::TrainMoe(model, training, x, residual, dy);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_TRUE(other->d_x == plain->d_x);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(other->gradients, plain->gradients, 0));
  }
}

class MoeBackwardErrorsTest : public testing::Test {
 protected:
  absl::Status Run() { return backward_.Run(step_, at_, layer_, weights_, rows_); }

  const test::MoeTestModel model_{{.shared_ffn = 16}};
  ThreadPool pool_{1, false};
  const Stream stream_ = Stream::OnCpu(&pool_);
  const ExpertLayout layout_ = ExpertLayout::Contiguous(8, 1);
  std::vector<std::unique_ptr<comm::Communicator>> ranks_ = test::MakeGroup(test::Backend::kLocal, 1);
  const pipeline::MoeSchedule schedule_ = pipeline::BuildExpertParallel({.shared_expert = true, .trains = true});
  const MoeLayer layer_ = model_.LayerOf(stream_, layout_, 0);
  const test::MoeTrained trained_{model_, stream_, layout_, 0};
  const Tensor x_ = model_.RandomRows(3, 1), residual_ = model_.RandomResidual(3, 2);
  const Tensor d_x_{DType::kF32, {3, 64}};
  MoeSaved saved_;
  MoeStats stats_;
  MoeContext step_ = {.stream = &stream_,
                      .comm = ranks_[0].get(),
                      .layout = &layout_,
                      .schedule = &schedule_,
                      .deadline = test::Soon(),
                      .stats = &stats_};
  const LayerContext at_ = {.saved = &saved_};
  MoeBackwardWeights weights_ = trained_.weights();
  MoeBackwardRows rows_ = {.x = x_, .d_residual = residual_, .router_loss = {}, .d_x = d_x_};
  MoeBackward backward_;
};

TEST_F(MoeBackwardErrorsTest, SaysWhatIsMissingOrDoesNotFit) {
  EXPECT_EQ(Run().code(), absl::StatusCode::kFailedPrecondition);
  MoeExecutor executor;
  ASSERT_TRUE(executor.Run(step_, at_, layer_, x_, residual_).ok());
  ASSERT_TRUE(Run().ok());
  const auto expect = [&](absl::StatusCode code, const char* message) {
    const absl::Status status = Run();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    weights_ = trained_.weights();
    rows_ = {.x = x_, .d_residual = residual_, .router_loss = {}, .d_x = d_x_};
    step_.schedule = &schedule_;
  };
  rows_.d_residual = residual_.view().Columns(0, 32);
  expect(absl::StatusCode::kInvalidArgument, "d_residual is fp32 [3, 32] cpu, wants fp32 [3, 64]");
  rows_ = {.x = x_.view().Rows(0, 2),
           .d_residual = residual_.view().Rows(0, 2),
           .router_loss = {},
           .d_x = d_x_.view().Rows(0, 2)};
  expect(absl::StatusCode::kFailedPrecondition, "2 rows in 1 micro-batches where the forward pass saved 3 in 1");
  const pipeline::MoeSchedule two =
      pipeline::BuildExpertParallel({.micro_batches = 2, .shared_expert = true, .trains = true});
  step_.schedule = &two;
  expect(absl::StatusCode::kFailedPrecondition, "3 rows in 2 micro-batches where the forward pass saved 3 in 1");
  const pipeline::MoeSchedule unshared = pipeline::BuildExpertParallel({.trains = true});
  step_.schedule = &unshared;
  expect(absl::StatusCode::kInvalidArgument, "lacks a shared expert, the layer has one");
  const pipeline::MoeSchedule forward = pipeline::BuildExpertParallel({.shared_expert = true});
  step_.schedule = &forward;
  expect(absl::StatusCode::kFailedPrecondition, "schedule expert_parallel has no backward");
  weights_.router.transposed = nullptr;
  expect(absl::StatusCode::kInvalidArgument, "transpose of router is missing, wants fp32 [64, 8]");
  weights_.router.gradient = d_x_;
  expect(absl::StatusCode::kInvalidArgument, "gradient of router is fp32 [3, 64] cpu, wants fp32 [8, 64]");
  weights_.experts = weights_.experts.subspan(1);
  expect(absl::StatusCode::kInvalidArgument, "gradients of 7 experts for 8 resident ones");
  weights_.shared = nullptr;
  expect(absl::StatusCode::kInvalidArgument, "no gradients of the shared expert");
}

}  // namespace
}  // namespace switchyard::moe
