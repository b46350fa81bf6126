// Balancing by biases of routers: the rule, PyTorch's biases over twenty steps, and that nothing else touches them.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameter_files.h"
#include "workers/train/step/router_losses.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

constexpr char kBias[] = "gate.e_score_correction_bias";

// Of all layers, in their order (there are fewer than ten).
std::vector<double> BiasesOf(const Values& values) {
  std::vector<double> biases;
  for (const auto& [name, each] : values) {
    if (absl::EndsWith(name, kBias)) biases.insert(biases.end(), each.begin(), each.end());
  }
  return biases;
}

TEST(MoveRouterBiasTest, TowardsTheMeanLoad) {
  std::vector<double> bias = {1, 2, 3, 4};
  MoveRouterBias(0.5, {0, 7, 3, 2}, TensorView(bias.data(), DType::kF64, {4, 1}));  // the mean is 3
  EXPECT_THAT(bias, ElementsAre(1.5, 1.5, 3, 4.5));
  MoveRouterBias(0.5, {5, 5, 5, 6}, TensorView(bias.data(), DType::kF64, {4, 1}));  // 5.25
  EXPECT_THAT(bias, ElementsAre(2, 2, 3.5, 4));
  std::vector<float> narrow = {0, 0};
  MoveRouterBias(0.001, {0, 0}, TensorView(narrow.data(), DType::kF32, {2}));
  EXPECT_THAT(narrow, ElementsAre(0, 0));
}

class RouterBalanceTest : public ::testing::Test {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden("gpt2-bias");

  TrainingGroupOptions Options(DType dtype, int world = 1) const {
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.trainer.balance_bias_rate = golden_.bias_rate;
    return options;
  }
};

// Chosen by biased scores, weighed by unbiased ones.
TEST_F(RouterBalanceTest, GradientsAreAutograds) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF32, 1e-4), std::make_pair(DType::kF64, 1e-5)}) {
    TrainingGroup group(golden_.dir, {.dtype = dtype});
    const StepReport report =
        group.Step({{.length = golden_.length, .tokens = golden_.tokens, .targets = golden_.targets}}, 0);
    EXPECT_NEAR(report.loss, golden_.loss, tolerance * golden_.loss);
    EXPECT_NEAR(report.balance_loss, golden_.aux, tolerance * golden_.aux);
    const Values found = group.Gradients();
    for (const auto& [name, values] : golden_.gradients) {
      if (absl::EndsWith(name, "k_proj.bias")) continue;  // zero but for roundings
      double largest = 0, distance = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(values[i])));
        distance = std::max(distance, std::abs(found.at(name)[i] - values[i]));
      }
      EXPECT_LE(distance, tolerance * largest) << name;
    }
    for (const double value : BiasesOf(found)) EXPECT_EQ(value, 0);  // none of its own
  }
}

TEST_F(RouterBalanceTest, TwentyStepsArePyTorchs) {
  TrainingGroup group(golden_.dir, Options(DType::kF64));
  const std::vector<double> first = BiasesOf(group.Masters());
  for (size_t i = 0; i < golden_.step_loss.size(); ++i) {
    const StepReport report = group.Step({RowsOfStep(golden_, i)}, kLearningRate);
    EXPECT_NEAR(report.loss, golden_.step_loss[i], 1e-4 * golden_.step_loss[i]) << "step " << i;
    EXPECT_NEAR(report.gradient_norm, golden_.step_norm[i], 1e-3 * golden_.step_norm[i]) << "step " << i;
    const std::vector<double> biases = BiasesOf(group.Masters());
    ASSERT_EQ(biases.size() * golden_.step_loss.size(), golden_.step_bias.size());
    for (size_t j = 0; j < biases.size(); ++j) {
      EXPECT_NEAR(biases[j], golden_.step_bias[i * biases.size() + j], 1e-12) << "step " << i << ", bias " << j;
    }
  }
  EXPECT_NE(BiasesOf(group.Masters()), first);
  for (const double value : BiasesOf(group.Moments())) EXPECT_EQ(value, 0);
}

// Counts are of the whole step: of all ranks and micro-batches.
TEST_F(RouterBalanceTest, TheSameOnAnyRanksAndInMicroBatches) {
  const auto train = [&](const TrainingGroupOptions& options, bool halves) {
    TrainingGroup group(golden_.dir, options);
    for (size_t i = 0; i < 5; ++i) {
      const TrainRows all = RowsOfStep(golden_, i);
      std::vector<TrainRows> parts = {all};
      if (halves) {
        const auto cut = static_cast<int64_t>(2 * golden_.length);
        parts = {{.length = all.length,
                  .tokens = {all.tokens.begin(), all.tokens.begin() + cut},
                  .targets = {all.targets.begin(), all.targets.begin() + cut}},
                 {.length = all.length,
                  .tokens = {all.tokens.begin() + cut, all.tokens.end()},
                  .targets = {all.targets.begin() + cut, all.targets.end()}}};
      }
      group.Step(parts, kLearningRate);
    }
    group.ExpectReplicasAlike();
    return BiasesOf(group.Masters());
  };
  TrainingGroupOptions options = Options(DType::kF64);
  options.trainer.router.balance_weight = 0;  // that is each micro-batch's own
  const std::vector<double> alone = train(options, false);
  EXPECT_EQ(train(options, true), alone);
  for (const int world : {2, 4}) {
    options.world = world;
    EXPECT_EQ(train(options, false), alone) << world;
  }
}

// Neither does a capacity change what counts: what chose an expert, and not what found room there.
TEST_F(RouterBalanceTest, WhatIsDroppedCounts) {
  TrainingGroupOptions options = Options(DType::kF64);
  TrainingGroup dropless(golden_.dir, options);
  options.trainer.capacity_factor = 0.5;
  TrainingGroup tight(golden_.dir, options);
  dropless.Step({RowsOfStep(golden_, 0)}, 0);
  EXPECT_GT(tight.Step({RowsOfStep(golden_, 0)}, 0).dropped_rows, 0);
  // Of the first layer, which no dropped row has changed before it.
  const std::string name = "model.layers.0.mlp.gate.e_score_correction_bias";
  EXPECT_EQ(tight.Masters().at(name), dropless.Masters().at(name));
}

// Decay, clipping and rates of learning are for what gradients train.
TEST_F(RouterBalanceTest, NothingElseTouchesIt) {
  TrainingGroupOptions options = Options(DType::kF32);
  TrainingGroup usual(golden_.dir, options);
  options.trainer.optimizer.weight_decay = 0.9;
  options.trainer.optimizer.clip_norm = 1e-3;
  TrainingGroup other(golden_.dir, options);
  usual.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  other.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  EXPECT_EQ(BiasesOf(usual.Masters()), BiasesOf(other.Masters()));
  options.trainer.balance_bias_rate = 0;
  TrainingGroup still(golden_.dir, options);
  const std::vector<double> before = BiasesOf(still.Masters());
  still.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  EXPECT_EQ(BiasesOf(still.Masters()), before);
}

// bf16 models have it in fp32, in memory and in their files.
TEST_F(RouterBalanceTest, StaysWideInABf16Model) {
  TrainingGroup group(golden_.dir, Options(DType::kBf16));
  group.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  const model::MoeWeights& weights = *group.model(0).weights().layers[0].moe;
  ASSERT_EQ(weights.router_bias.dtype(), DType::kF32);
  const std::vector<double> master = group.Masters().at("model.layers.0.mlp.gate.e_score_correction_bias");
  for (size_t e = 0; e < master.size(); ++e) EXPECT_EQ(weights.router_bias.data<float>()[e], master[e]);
  int seen = 0;
  const std::vector<checkpoint::CheckpointFile> files =
      ParameterFiles(group.parameters(0).blocks(), 0, 1, DType::kBf16);
  for (const checkpoint::TensorToWrite& tensor : files[0].tensors) {
    const bool bias = absl::EndsWith(tensor.name, kBias);
    EXPECT_EQ(tensor.dtype, bias ? DType::kF32 : DType::kBf16) << tensor.name;
    seen += bias ? 1 : 0;
  }
  EXPECT_EQ(seen, group.model(0).config().num_moe_layers());
}

TEST_F(RouterBalanceTest, AModelWithoutBiasesIsRefused) {
  const TrainingGolden golden = LoadTrainingGolden("gpt2-top2");
  TrainingGroup group(golden.dir, {});
  const auto make = [&](double rate) {
    TrainerOptions options = {.balance_bias_rate = rate, .max_sequences = 4, .max_length = 8};
    ThreadPool pool(1, false);
    return Trainer::Create(Stream::OnCpu(&pool), &group.model(0), &group.parameters(0), options).status();
  };
  EXPECT_TRUE(make(0).ok());
  EXPECT_EQ(make(0.001).message(),
            "trainer: balance_bias_rate is 0.001, but Gpt2MoeForCausalLM's routers have no bias here");
  EXPECT_THAT(std::string(make(-1).message()), HasSubstr("balance_bias_rate is -1, outside [0, 1)"));
}

}  // namespace
}  // namespace switchyard::train
