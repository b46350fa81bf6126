// Training with a capacity of experts that binds: against PyTorch (tests/golden/models/gpt2_moe.py has GShard's
// Algorithm 1), against finite differences, and the same on 1, 2 and 4 workers in all modes of communication.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

class CapacityTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());

  TrainingGroupOptions Options(DType dtype, int world = 1) const {
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.trainer.capacity_factor = golden_.capacity_factor;
    return options;
  }
  TrainRows Rows() const { return {.length = golden_.length, .tokens = golden_.tokens, .targets = golden_.targets}; }
  // Four sequences, which 1, 2 and 4 ranks divide in equal parts, and a second micro-batch of two, so that some ranks
  // have none.
  std::vector<TrainRows> FourAndTwo(size_t step) const {
    TrainRows four = RowsOfStep(golden_, step), two = RowsOfStep(golden_, step + 1);
    const auto cut = two.tokens.begin() + golden_.length, cut_targets = two.targets.begin() + golden_.length;
    four.tokens.insert(four.tokens.end(), two.tokens.begin(), cut);
    four.targets.insert(four.targets.end(), two.targets.begin(), cut_targets);
    two.tokens.erase(cut, two.tokens.end());
    two.targets.erase(cut_targets, two.targets.end());
    return {four, two};
  }
};

TEST_P(CapacityTest, GradientsAreAutograds) {
  ASSERT_GT(golden_.dropped, 0);
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF32, 1e-4), std::make_pair(DType::kF64, 1e-5)}) {
    TrainingGroup group(golden_.dir, Options(dtype));
    const StepReport report = group.Step({Rows()}, /*learning_rate=*/0);
    EXPECT_EQ(report.dropped_rows, golden_.dropped);
    EXPECT_NEAR(report.loss, golden_.loss, tolerance * golden_.loss);
    EXPECT_NEAR(report.balance_loss, golden_.aux, tolerance * golden_.aux);  // of choices before they are dropped
    const Values found = group.Gradients();
    ASSERT_EQ(found.size(), golden_.gradients.size());
    for (const auto& [name, values] : golden_.gradients) {
      double largest = LargestOf(values), distance = 0;
      if (absl::EndsWith(name, "k_proj.bias")) {  // zero but for roundings: gradients_test.cc
        largest = LargestOf(golden_.gradients.at(absl::StrReplaceAll(name, {{"k_proj", "q_proj"}})));
      }
      ASSERT_EQ(found.at(name).size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        distance = std::max(distance, std::abs(found.at(name)[i] - values[i]));
      }
      EXPECT_LE(distance, tolerance * largest) << name;
    }
  }
}

TEST_P(CapacityTest, TwentyStepsArePyTorchs) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    TrainingGroup group(golden_.dir, Options(dtype));
    for (size_t i = 0; i < golden_.step_loss.size(); ++i) {
      const StepReport report = group.Step({RowsOfStep(golden_, i)}, kLearningRate);
      EXPECT_NEAR(report.loss, golden_.step_loss[i], 1e-4 * golden_.step_loss[i]) << "step " << i;
      EXPECT_NEAR(report.gradient_norm, golden_.step_norm[i], 1e-3 * golden_.step_norm[i]) << "step " << i;
      EXPECT_EQ(report.dropped_rows, golden_.step_dropped.at(i)) << "step " << i;
    }
  }
}

// Of the cross-entropy alone, far enough from where a choice changes (a step of 1e-6, margins of routers are wider).
TEST_P(CapacityTest, GradientsAreFiniteDifferences) {
  TrainingGroupOptions options = Options(DType::kF64);
  options.trainer.router.balance_weight = 0;
  TrainingGroup group(golden_.dir, options);
  const std::vector<TrainRows> rows = {Rows()};
  const StepReport report = group.Step(rows, 0);
  constexpr double kStep = 1e-6;
  const double resolution = std::max(1e-9, 2 * report.loss * std::numeric_limits<double>::epsilon() / kStep);
  struct Probe {
    std::string name;
    Tensor* master;
    int64_t element;
    double gradient, largest;
  };
  std::vector<Probe> probes;  // (steps of no length overwrite gradients)
  for (ParameterBlock& block : group.parameters(0).blocks()) {
    double* const gradient = block.gradient.data<double>();
    const int64_t largest = std::max_element(gradient, gradient + block.size(),
                                             [](double a, double b) { return std::abs(a) < std::abs(b); }) -
                            gradient;
    probes.push_back({block.parts[0].name, &block.master, largest, gradient[largest], std::abs(gradient[largest])});
  }
  const auto loss_at = [&](const Probe& probe, double value) {
    probe.master->data<double>()[probe.element] = value;
    EXPECT_TRUE(group.parameters(0).Publish(GatherCall()).ok());
    const StepReport moved = group.Step(rows, 0);
    EXPECT_EQ(moved.dropped_rows, report.dropped_rows) << probe.name;
    return moved.loss;
  };
  for (const Probe& probe : probes) {
    const double value = probe.master->data<double>()[probe.element];
    const double up = loss_at(probe, value + kStep), down = loss_at(probe, value - kStep);
    loss_at(probe, value);
    EXPECT_NEAR((up - down) / (2 * kStep), probe.gradient, 1e-6 * probe.largest + resolution) << probe.name;
  }
}

TEST_P(CapacityTest, RanksDropTheSameInAllModes) {
  constexpr jobs::CommMode kModes[] = {jobs::CommMode::kArLast,           jobs::CommMode::kFair,
                                       jobs::CommMode::kPriorityTicketed, jobs::CommMode::kPartition,
                                       jobs::CommMode::kPipelining,       jobs::CommMode::kFixed};
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
    TrainingGroup alone(golden_.dir, Options(dtype));
    std::vector<StepReport> expected;
    for (size_t i = 0; i < 4; ++i) expected.push_back(alone.Step(FourAndTwo(2 * i), kLearningRate));
    for (const jobs::CommMode mode : kModes) {
      for (const int world : {2, 4}) {
        TrainingGroupOptions options = Options(dtype, world);
        options.trainer.communication = {.mode = mode, .piece_bytes = 1024};
        int64_t ranks = 0;
        options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
          return comm::MakeFaultyCommunicator(
              std::move(inner),
              {.kind = comm::CommFault::Kind::kJitter, .at_launch = ++ranks, .delay = absl::Microseconds(200)});
        };
        TrainingGroup group(golden_.dir, options);
        for (size_t i = 0; i < expected.size(); ++i) {
          const StepReport report = group.Step(FourAndTwo(2 * i), kLearningRate);
          EXPECT_GT(report.dropped_rows, 0);
          EXPECT_EQ(report.dropped_rows, expected[i].dropped_rows) << jobs::CommModeName(mode) << " on " << world;
          EXPECT_EQ(report.dead_experts, expected[i].dead_experts);
          EXPECT_NEAR(report.loss, expected[i].loss, tolerance * expected[i].loss) << jobs::CommModeName(mode) << world;
          EXPECT_NEAR(report.balance_loss, expected[i].balance_loss, 1e-5 * expected[i].balance_loss);
        }
      }
    }
  }
}

// Layers that run again compare counts again, with the same result.
TEST_P(CapacityTest, WhatIsKeptThreadsAndPackingChangeNothingOfIt) {
  TrainingGroupOptions options = Options(DType::kF32, 4);
  TrainingGroup plain(golden_.dir, options);
  options.trainer.save = model::SavePolicy::kLayerInputs;
  options.threads = 2;
  TrainingGroup again(golden_.dir, options);
  TrainingGroupOptions packed_options = Options(DType::kF32, 4);
  packed_options.packing = 2;
  TrainingGroup packed(golden_.dir, packed_options);
  for (size_t i = 0; i < 3; ++i) {
    const StepReport report = plain.Step(FourAndTwo(2 * i), kLearningRate);
    const StepReport other = again.Step(FourAndTwo(2 * i), kLearningRate);
    const StepReport replicated = packed.Step(FourAndTwo(2 * i), kLearningRate);
    EXPECT_EQ(other.dropped_rows, report.dropped_rows);
    EXPECT_EQ(other.loss, report.loss);
    EXPECT_EQ(replicated.dropped_rows, report.dropped_rows);  // an expert takes rows of all ranks, wherever it is
    EXPECT_NEAR(replicated.loss, report.loss, 1e-5 * report.loss);
  }
  EXPECT_EQ(again.Masters(), plain.Masters());
}

TEST_P(CapacityTest, EvaluationAndServingDropNothing) {
  TrainingGroup group(golden_.dir, Options(DType::kF32, 2)), dropless(golden_.dir, {.world = 2});
  group.Step({Rows()}, 0);  // (its counts must not stay)
  EXPECT_EQ(group.Evaluate({Rows()}).loss, dropless.Evaluate({Rows()}).loss);
  EXPECT_NE(group.Step({Rows()}, 0).loss, dropless.Step({Rows()}, 0).loss);
}

// A capacity that cannot bind needs no collective and changes no bit.
TEST_P(CapacityTest, RoomForAllIsDropless) {
  TrainingGroupOptions options = Options(DType::kF32, 2);
  options.trainer.capacity_factor = 1000;
  TrainingGroup roomy(golden_.dir, options), dropless(golden_.dir, {.world = 2});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(roomy.Step({RowsOfStep(golden_, i)}, kLearningRate).dropped_rows, 0);
    dropless.Step({RowsOfStep(golden_, i)}, kLearningRate);
  }
  EXPECT_EQ(roomy.Masters(), dropless.Masters());
}

INSTANTIATE_TEST_SUITE_P(Goldens, CapacityTest, ::testing::Values("gpt2-top1-capacity", "gpt2-top2-capacity"),
                         [](const auto& info) { return model::TestName(info.param); });

// The families of transformers have one, too: no reference of theirs, but the same on any number of ranks.
TEST(CapacityFamiliesTest, RanksDropTheSame) {
  for (const char* name : {"qwen2-shared", "mixtral-window"}) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    TrainingGroupOptions options = {.dtype = DType::kF64};
    options.trainer.capacity_factor = 0.75;
    TrainingGroup alone(golden.dir, options);
    options.world = 2;
    TrainingGroup two(golden.dir, options);
    for (size_t i = 0; i < 3; ++i) {
      const StepReport expected = alone.Step({RowsOfStep(golden, i)}, kLearningRate);
      const StepReport report = two.Step({RowsOfStep(golden, i)}, kLearningRate);
      EXPECT_GT(report.dropped_rows, 0);
      EXPECT_EQ(report.dropped_rows, expected.dropped_rows);
      EXPECT_NEAR(report.loss, expected.loss, 1e-10 * expected.loss);
    }
  }
}

}  // namespace
}  // namespace switchyard::train
