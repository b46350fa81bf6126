// Steps of the trainer: against PyTorch's AdamW, over ranks, and what it refuses.
#include "workers/train/step/trainer.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/local/local_communicator.h"

namespace switchyard::train {
namespace {

class TrainerTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());

  std::vector<StepReport> Train(const TrainingGroupOptions& options, size_t steps) {
    TrainingGroup group(golden_.dir, options);
    std::vector<StepReport> reports;
    for (size_t i = 0; i < steps; ++i) reports.push_back(group.Step({RowsOfStep(golden_, i)}, kLearningRate));
    return reports;
  }
};

TEST_P(TrainerTest, TwentyStepsArePyTorchs) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::vector<StepReport> reports = Train({.dtype = dtype}, golden_.step_loss.size());
    ASSERT_EQ(reports.size(), 20u);
    for (size_t i = 0; i < reports.size(); ++i) {
      EXPECT_NEAR(reports[i].loss, golden_.step_loss[i], 1e-4 * golden_.step_loss[i]) << "step " << i;
      EXPECT_NEAR(reports[i].gradient_norm, golden_.step_norm[i], 1e-3 * golden_.step_norm[i]) << "step " << i;
    }
  }
}

TEST_P(TrainerTest, RanksGiveTheSameLosses) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
    const std::vector<StepReport> alone = Train({.dtype = dtype}, 6);
    for (const int world : {2, 4}) {
      const std::vector<StepReport> together = Train({.dtype = dtype, .world = world}, 6);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_NEAR(together[i].loss, alone[i].loss, tolerance * alone[i].loss) << world << " ranks, step " << i;
      }
    }
  }
}

TEST_P(TrainerTest, LearnsInBf16) {
  const std::vector<StepReport> reports = Train({.dtype = DType::kBf16}, 20);
  EXPECT_NEAR(reports.back().loss, golden_.step_loss.back(), 0.05 * golden_.step_loss.back());
}

TEST_P(TrainerTest, TheSameStepsHaveTheSameBits) {
  TrainingGroup first(golden_.dir, {.world = 2}), second(golden_.dir, {.world = 2, .threads = 2});
  for (size_t i = 0; i < 3; ++i) {
    first.Step({RowsOfStep(golden_, i)}, kLearningRate);
    second.Step({RowsOfStep(golden_, i)}, kLearningRate);
  }
  EXPECT_EQ(first.Masters(), second.Masters());
}

// Nothing moves by balance losses, moments or decay alone, and AdamW has not seen the step.
TEST_P(TrainerTest, AStepWithoutATargetIsSkipped) {
  TrainRows empty = RowsOfStep(golden_, 1);
  std::fill(empty.targets.begin(), empty.targets.end(), -1);
  for (const int world : {1, 2, 4}) {
    TrainingGroup group(golden_.dir, {.world = world}), other(golden_.dir, {.world = world});
    group.Step({RowsOfStep(golden_, 0)}, kLearningRate);
    other.Step({RowsOfStep(golden_, 0)}, kLearningRate);
    const StepReport report = group.Step({empty}, kLearningRate);
    EXPECT_EQ(report.tokens, 0);
    EXPECT_EQ(report.dead_experts, 0);
    EXPECT_EQ(group.Masters(), other.Masters()) << world;
    EXPECT_EQ(group.Moments(), other.Moments()) << world;
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(group.trainer(0).steps(), 2);
    EXPECT_EQ(group.trainer(0).skipped_steps(), 1);
    const StepReport next = group.Step({RowsOfStep(golden_, 2)}, kLearningRate);
    EXPECT_FALSE(next.skipped);
    EXPECT_EQ(next.loss, other.Step({RowsOfStep(golden_, 2)}, kLearningRate).loss);
    EXPECT_EQ(group.Masters(), other.Masters()) << world;
  }
}

// One row chooses K experts of each MoE layer, and leaves the others.
TEST_P(TrainerTest, CountsExpertsThatNobodyChose) {
  for (const int world : {1, 2}) {
    TrainingGroup group(golden_.dir, {.world = world});
    const model::ModelConfig& config = group.model(0).config();
    const int64_t moe_layers = config.num_moe_layers();
    const TrainRows one = {.length = 1, .tokens = {5}, .targets = {6}};
    const int64_t chosen = moe_layers * config.top_k;
    EXPECT_EQ(group.Step({one}, 0).dead_experts, moe_layers * config.num_experts - chosen);
    // Of all micro-batches together.
    const StepReport report = group.Step({RowsOfStep(golden_, 0), one}, 0);
    EXPECT_LE(report.dead_experts, group.Step({RowsOfStep(golden_, 0)}, 0).dead_experts);
    EXPECT_LT(report.dead_experts, moe_layers * config.num_experts - chosen);
    EXPECT_EQ(group.Step({one}, 0).dead_experts, moe_layers * config.num_experts - chosen);
    EXPECT_EQ(report.dropped_rows, 0);
  }
}

TEST_P(TrainerTest, SaysWhereItsTimeWent) {
  for (const int world : {1, 2}) {
    TrainingGroup group(golden_.dir, {.world = world});
    const TrainRows rows = RowsOfStep(golden_, 0);
    const StepReport report = group.Step({rows, rows}, kLearningRate);
    EXPECT_EQ(report.expert_ops, 2 * group.model(0).config().num_moe_layers());
    const RankStepSeconds seconds = report.seconds;
    EXPECT_GT(seconds.experts, 0);
    EXPECT_GT(seconds.forward, seconds.experts + seconds.all_to_all - seconds.backward_all_to_all);
    EXPECT_GT(seconds.backward_experts, 0);
    EXPECT_GT(seconds.backward, seconds.backward_experts + seconds.backward_all_to_all);
    EXPECT_GT(seconds.backward_all_to_all, 0);
    EXPECT_GT(seconds.all_to_all, seconds.backward_all_to_all);
    EXPECT_GT(seconds.optimizer, 0);
    EXPECT_EQ(seconds.all_reduce > 0, world > 1);
    EXPECT_LE(seconds.forward + seconds.backward + seconds.all_reduce + seconds.optimizer, seconds.total);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, TrainerTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return model::TestName(info.param); });

// With an epsilon that is far above all clipped gradients, AdamW's first step is the gradient times rate / epsilon.
TEST(TrainerClipTest, GradientsAreScaledToTheNorm) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  constexpr double kEpsilon = 0.5;
  StepReport report;
  const auto step_of = [&](double clip_norm) {
    TrainingGroupOptions options = {.dtype = DType::kF64};
    options.trainer.optimizer = {.epsilon = kEpsilon, .weight_decay = 0, .clip_norm = clip_norm};
    TrainingGroup group(golden.dir, options);
    const auto before = group.Masters();
    report = group.Step({RowsOfStep(golden, 0)}, /*learning_rate=*/1);
    std::vector<double> moves;
    for (const auto& [name, values] : group.Masters()) {
      for (size_t i = 0; i < values.size(); ++i) moves.push_back(values[i] - before.at(name)[i]);
    }
    return moves;
  };
  EXPECT_EQ(step_of(1e9), step_of(0));
  const std::vector<double> clipped = step_of(1e-5), more = step_of(1e-6);
  EXPECT_GT(report.gradient_norm, 0.1) << "as it was before";
  double squares = 0, dot = 0;
  for (size_t i = 0; i < clipped.size(); ++i) {
    squares += clipped[i] * clipped[i];
    dot += clipped[i] * more[i];
  }
  EXPECT_NEAR(std::sqrt(squares) * kEpsilon, 1e-5, 1e-9);
  EXPECT_NEAR(dot / squares, 0.1, 1e-4);
}

class TrainerErrorsTest : public ::testing::Test {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden("qwen3-qknorm");
  TrainRows rows_ = RowsOfStep(golden_, 0);
};

TEST_F(TrainerErrorsTest, ATokenOutsideTheVocabulary) {
  TrainingGroup group(golden_.dir, {});
  rows_.tokens[7] = 256;
  EXPECT_EQ(group.TryStep({rows_}, 1e-3).status().message(), "trainer: tokens[7] = 256 is outside [0, 256)");
}

TEST_F(TrainerErrorsTest, ATargetOutsideTheVocabulary) {
  TrainingGroup group(golden_.dir, {});
  rows_.targets[9] = 300;
  EXPECT_EQ(group.TryStep({rows_}, 1e-3).status().message(), "trainer: targets[9] = 300 is outside [0, 256)");
}

// The other ranks do not wait for it: they get its error.
TEST_F(TrainerErrorsTest, OfOneRankAlone) {
  TrainingGroup group(golden_.dir, {.world = 2});
  const auto before = group.Masters();
  rows_.targets[9] = 300;  // of the first sequence: rank 0's
  const absl::Time start = absl::Now();
  EXPECT_EQ(group.TryStep({rows_}, 1e-3).status().message(), "trainer: targets[9] = 300 is outside [0, 256)");
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));  // the deadline is 60
  EXPECT_EQ(group.Masters(), before);
}

// A rank of its own has no peers, and sees the abort all the same.
TEST_F(TrainerErrorsTest, OfAGroupThatIsGivenUp) {
  for (const int world : {1, 2}) {
    TrainingGroup group(golden_.dir, {.world = world});
    const auto before = group.Masters();
    for (int rank = 0; rank < world; ++rank) group.comm(rank)->Abort("nobody wants it");
    EXPECT_THAT(std::string(group.TryStep({rows_}, 1e-3).status().message()), testing::HasSubstr("nobody wants it"));
    EXPECT_EQ(group.Masters(), before);
  }
}

TEST_F(TrainerErrorsTest, NumbersThatCannotBe) {
  TrainingGroup group(golden_.dir, {});
  const auto before = group.Masters();
  EXPECT_EQ(group.TryStep({rows_}, std::nan("")).status().message(), "trainer: learning_rate is nan, outside [0, 10]");
  EXPECT_EQ(group.Masters(), before);
  EXPECT_EQ(group.trainer(0).steps(), 0);
}

TEST_F(TrainerErrorsTest, ExpertsOnSeveralRanks) {
  TrainingGroup group(golden_.dir, {});
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  std::vector<int32_t> all(group.model(0).config().num_experts);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::vector<int32_t>> residents = {all, all};
  const moe::ExpertLayout layout = moe::ExpertLayout::FromResidents(static_cast<int>(all.size()), residents);
  EXPECT_EQ(group.trainer(0).SetGroup({.world = pair[0].get(), .experts = pair[0].get(), .layout = &layout}).message(),
            "trainer: expert 0 is on 2 ranks; a layout for training has each on one");
}

TEST_F(TrainerErrorsTest, RanksThatDoNotFitEachOther) {
  TrainingGroup group(golden_.dir, {});
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  const std::unique_ptr<comm::Communicator> alone = comm::MakeSoloCommunicator();
  const int experts = static_cast<int>(group.model(0).config().num_experts);
  const moe::ExpertLayout one = moe::ExpertLayout::Contiguous(experts, 1),
                          two = moe::ExpertLayout::Contiguous(experts, 2);
  EXPECT_EQ(group.trainer(0).SetGroup({.world = pair[0].get(), .experts = alone.get(), .layout = &one}).message(),
            "trainer: a layout of 1 ranks for 1 that have the experts 1 times, of 2");
  EXPECT_EQ(group.trainer(0).SetGroup({.world = alone.get(), .experts = alone.get(), .layout = &two}).message(),
            "trainer: a layout of 2 ranks for 1 that have the experts 1 times, of 1");
}

TEST_F(TrainerErrorsTest, LongerSequencesThanThereIsRoomFor) {
  TrainingGroupOptions options;
  options.trainer.max_length = 8;
  TrainingGroup group(golden_.dir, options);
  EXPECT_EQ(group.TryStep({rows_}, 1e-3).status().message(),
            "trainer: a micro-batch of 63 tokens and 63 targets in sequences of 21; the limits are 16 sequences of 8");
}

// Nothing has changed then, on any rank.
TEST_F(TrainerErrorsTest, ALossThatIsNotFinite) {
  TrainingGroup group(golden_.dir, {.world = 2});
  for (int r = 0; r < 2; ++r) {
    Tensor& norm = group.model(r).mutable_weights()->final_norm;
    norm.data<float>()[0] = std::numeric_limits<float>::infinity();
  }
  const auto before = group.Masters();
  const absl::Status status = group.TryStep({rows_}, 1e-3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(group.Masters(), before);
  EXPECT_EQ(group.trainer(0).steps(), 0);
}

TEST_F(TrainerErrorsTest, AnEvaluationThatIsNotFinite) {
  TrainingGroup group(golden_.dir, {.world = 2});
  for (int r = 0; r < 2; ++r) {
    group.model(r).mutable_weights()->final_norm.data<float>()[0] = std::numeric_limits<float>::infinity();
  }
  const std::vector<absl::Status> ends = group.OnEach([&](int rank) {
    return group.trainer(rank).Evaluate(absl::MakeConstSpan(&rows_, 1), absl::Now() + absl::Minutes(1)).status();
  });
  for (const absl::Status& end : ends) {
    EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss) << end;
    EXPECT_THAT(std::string(end.message()), testing::HasSubstr("of an evaluation"));
  }
}

TEST_F(TrainerErrorsTest, AStepOfMaskedTokensAlone) {
  TrainingGroup group(golden_.dir, {.trainer = {.optimizer = {.clip_norm = 1}, .router = {.balance_weight = 0}}});
  for (int32_t& target : rows_.targets) target = -100;
  const StepReport report = group.Step({rows_}, 0);
  EXPECT_EQ(report.tokens, 0);
  EXPECT_EQ(report.loss, 0);
  EXPECT_EQ(report.gradient_norm, 0);
}

}  // namespace
}  // namespace switchyard::train
