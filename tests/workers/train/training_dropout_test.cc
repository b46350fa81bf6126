// Training with dropout and router jitter, against PyTorch, transformers and PEFT with the same random numbers
// (tests/golden/dropout/make.py), by finite differences, and over ranks, micro-batches and what is kept.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/train/training_group.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/train/step/row_keys.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

struct DropoutGolden {
  TrainingGolden steps;  // only what concerns steps
  model::NoiseRates rates;
  uint64_t seed = 0;
  model::AdapterDesc adapters = {};
  Values first;  // A of adapters
};

template <class Value>
std::vector<double> Numbers(const checkpoint::WeightsFile& file, const checkpoint::TensorEntry& entry) {
  std::vector<Value> values(static_cast<size_t>(entry.bytes) / sizeof(Value));
  SY_CHECK_OK(file.Read(entry.begin, entry.bytes, values.data()));
  return {values.begin(), values.end()};
}

void SetTokens(const std::vector<double>& tokens, const checkpoint::TensorEntry& entry, TrainingGolden* steps) {
  steps->sequences = entry.shape[1];
  steps->length = entry.shape[2] - 1;
  const int64_t one = entry.shape[1] * entry.shape[2];
  for (auto at = tokens.begin(); at != tokens.end(); at += one) steps->step_tokens.emplace_back(at, at + one);
}

DropoutGolden Load(const std::string& name) {
  absl::StatusOr<ModelDir> dir = ModelDir::Open("tests/golden/dropout");
  SY_CHECK_OK(dir.status());
  auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, name + ".safetensors");
  SY_CHECK_OK(file.status());
  DropoutGolden golden;
  golden.steps.dir = absl::StrCat("tests/golden/models/", absl::StripPrefix(name, "lora-"));
  double alpha = 0;
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    const std::vector<double> values =
        entry.dtype == "F64" ? Numbers<double>(**file, entry) : Numbers<int32_t>(**file, entry);
    absl::string_view key = tensor;
    if (absl::ConsumePrefix(&key, "first.")) golden.first[std::string(key)] = values;
    if (tensor == "rates") golden.rates = {values[0], values[1], values[2], values[3], values[4]};
    if (tensor == "seed") golden.seed = static_cast<uint64_t>(values[0]) | static_cast<uint64_t>(values[1]) << 32;
    if (tensor == "rank") golden.adapters.rank = static_cast<int64_t>(values[0]);
    if (tensor == "alpha") alpha = values[0];
    if (tensor == "steps.loss") golden.steps.step_loss = values;
    if (tensor == "steps.norm") golden.steps.step_norm = values;
    if (tensor == "steps.tokens") SetTokens(values, entry, &golden.steps);
    if (tensor != "targets") continue;
    for (const double target : values) {
      golden.adapters.targets.emplace_back(jobs::kLoraTargets[static_cast<size_t>(target)]);
    }
  }
  if (golden.adapters.rank > 0) golden.adapters.scale = alpha / static_cast<double>(golden.adapters.rank);
  SY_CHECK(golden.rates.any() && golden.steps.step_loss.size() == 20);
  return golden;
}

TrainingGroupOptions OptionsOf(const DropoutGolden& golden, DType dtype = DType::kF32, int world = 1) {
  TrainingGroupOptions options = {.dtype = dtype, .world = world};
  options.adapters = golden.adapters;
  options.trainer.noise = golden.rates;
  options.trainer.seed = golden.seed;
  return options;
}

// A group that begins as PEFT began; b: all elements of B.
std::unique_ptr<TrainingGroup> Begin(const DropoutGolden& golden, const TrainingGroupOptions& options, double b = 0) {
  auto group = std::make_unique<TrainingGroup>(golden.steps.dir, options);
  if (golden.adapters.rank == 0) return group;
  Values values = group->Masters();
  for (auto& [name, value] : values) {
    const bool is_a = absl::EndsWith(name, "lora_A.weight");
    if (is_a) value = golden.first.at(name);
    for (size_t i = 0; !is_a && i < value.size(); ++i) value[i] = b * std::sin(static_cast<double>(i));
  }
  group->SetMasters(values);
  return group;
}

std::vector<StepReport> Train(const DropoutGolden& golden, TrainingGroup* group, size_t steps = 20) {
  std::vector<StepReport> reports;
  for (size_t i = 0; i < steps; ++i) reports.push_back(group->Step({RowsOfStep(golden.steps, i)}, kLearningRate));
  return reports;
}

// One sequence each.
std::vector<TrainRows> OneByOne(const TrainRows& rows) {
  std::vector<TrainRows> parts;
  for (size_t at = 0; at < rows.tokens.size(); at += static_cast<size_t>(rows.length)) {
    TrainRows& part = parts.emplace_back();
    part.length = rows.length;
    const auto begin = static_cast<int64_t>(at), end = begin + rows.length;
    part.tokens.assign(rows.tokens.begin() + begin, rows.tokens.begin() + end);
    part.targets.assign(rows.targets.begin() + begin, rows.targets.begin() + end);
    part.first_sequence = begin / rows.length;
  }
  return parts;
}

class TrainingDropoutTest : public ::testing::TestWithParam<std::string> {
 protected:
  const DropoutGolden golden_ = Load(GetParam());
};

TEST_P(TrainingDropoutTest, TwentyStepsArePyTorchs) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, dtype));
    const std::vector<StepReport> reports = Train(golden_, group.get());
    double worst = 0;
    for (size_t i = 0; i < reports.size(); ++i) {
      worst = std::max(worst, std::abs(reports[i].loss / golden_.steps.step_loss[i] - 1));
      EXPECT_NEAR(reports[i].loss, golden_.steps.step_loss[i], 1e-4 * golden_.steps.step_loss[i]) << "step " << i;
      EXPECT_NEAR(reports[i].gradient_norm, golden_.steps.step_norm[i], 1e-3 * golden_.steps.step_norm[i])
          << "step " << i;
    }
    std::cout << GetParam() << " in " << DTypeName(dtype) << ": losses within " << worst << "\n";
    RecordProperty(absl::StrCat("loss_distance_", DTypeName(dtype)), absl::StrCat(worst));
  }
}

TEST_P(TrainingDropoutTest, RanksAndMicroBatchesDrawTheSameNumbers) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 2e-5)}) {
    TrainingGroupOptions options = OptionsOf(golden_, dtype);
    options.trainer.router.balance_weight = 0;  // that is each micro-batch's own
    const auto losses = [&](int world, bool parts) {
      options.world = world;
      const std::unique_ptr<TrainingGroup> group = Begin(golden_, options);
      std::vector<StepReport> reports;
      for (size_t i = 0; i < 4; ++i) {
        const TrainRows rows = RowsOfStep(golden_.steps, i);
        reports.push_back(group->Step(parts ? OneByOne(rows) : std::vector<TrainRows>{rows}, kLearningRate));
      }
      group->ExpectReplicasAlike();
      return reports;
    };
    const std::vector<StepReport> alone = losses(1, false);
    for (const auto& [world, parts] : {std::make_pair(1, true), {2, false}, {4, false}, {2, true}}) {
      const std::vector<StepReport> other = losses(world, parts);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_NEAR(other[i].loss, alone[i].loss, tolerance * alone[i].loss) << world << " ranks, step " << i;
        EXPECT_NEAR(other[i].gradient_norm, alone[i].gradient_norm, tolerance * 10 * alone[i].gradient_norm);
      }
    }
  }
}

TEST_P(TrainingDropoutTest, ThreadsAndWhatIsKeptChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto run = [&](int threads, model::SavePolicy save, pipeline::RestoreStrategy restore) {
      TrainingGroupOptions options = OptionsOf(golden_, dtype, 2);
      options.threads = threads;
      options.trainer.save = save;
      options.trainer.restore = restore;
      const std::unique_ptr<TrainingGroup> group = Begin(golden_, options);
      Train(golden_, group.get(), 3);
      return std::make_pair(group->Masters(), group->Moments());
    };
    const auto kept = run(1, model::SavePolicy::kAll, {});
    EXPECT_TRUE(run(2, model::SavePolicy::kLayerInputs, {}) == kept);
    EXPECT_TRUE(run(2, model::SavePolicy::kAll,
                    {pipeline::InputRestore::kResend, pipeline::HiddenRestore::kRecompute}) == kept);
  }
}

TEST_P(TrainingDropoutTest, LearnsInBf16) {
  const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, DType::kBf16, 2));
  const std::vector<StepReport> reports = Train(golden_, group.get());
  EXPECT_NEAR(reports.back().loss, golden_.steps.step_loss.back(), 0.05 * golden_.steps.step_loss.back());
}

// The masks of a step are fixed by its key, so its loss can be differentiated: the largest element of each parameter's
// gradient, and another.
TEST_P(TrainingDropoutTest, GradientsAreFiniteDifferences) {
  const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, DType::kF64), /*b=*/0.1);
  const auto objective = [&] {
    group->trainer(0).set_steps(4);
    const StepReport report = group->Step({RowsOfStep(golden_.steps, 0)}, 0);
    return report.loss + kAuxWeight * report.balance_loss;
  };
  const double begin = objective();
  std::vector<ParameterBlock>& blocks = group->parameters(0).blocks();
  std::vector<std::vector<double>> gradients;  // the steps below write theirs over them
  for (const ParameterBlock& block : blocks) {
    std::vector<double>& of_block = gradients.emplace_back();  // of the base beside adapters: none
    if (block.gradient.bytes() > 0)
      of_block.assign(block.gradient.data<double>(), block.gradient.data<double>() + block.size());
  }
  constexpr double kStep = 1e-6;
  const double resolution = std::max(1e-9, 2 * begin * std::numeric_limits<double>::epsilon() / kStep);
  int checked = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const std::vector<double>& gradient = gradients[b];
    if (gradient.empty()) continue;
    const auto objective_at = [&](int64_t i, double difference) {
      double& element = blocks[b].master.data<double>()[i];
      const double value = std::exchange(element, element + difference);
      SY_CHECK_OK(group->parameters(0).Publish(GatherCall()));
      element = value;  // the next one publishes it
      return objective();
    };
    const int64_t largest = std::max_element(gradient.begin(), gradient.end(),
                                             [](double x, double y) { return std::abs(x) < std::abs(y); }) -
                            gradient.begin();
    for (const int64_t i : {largest, blocks[b].size() / 3}) {
      const double up = objective_at(i, kStep), down = objective_at(i, -kStep);
      EXPECT_NEAR((up - down) / (2 * kStep), gradient[i], 1e-6 * std::abs(gradient[largest]) + resolution)
          << blocks[b].parts[0].name << " element " << i;
      ++checked;
    }
  }
  EXPECT_GT(checked, 10);
}

TEST_P(TrainingDropoutTest, EvaluationDropsNothing) {
  TrainingGroupOptions without = OptionsOf(golden_);
  without.trainer.noise = {};
  const std::unique_ptr<TrainingGroup> noisy = Begin(golden_, OptionsOf(golden_), 0.1);
  const std::unique_ptr<TrainingGroup> plain = Begin(golden_, without, 0.1);
  const TrainRows rows = RowsOfStep(golden_.steps, 0);
  EXPECT_EQ(noisy->Evaluate({rows}).loss, plain->Evaluate({rows}).loss);
  const double dropped = noisy->Step({rows}, 0).loss;
  EXPECT_NE(dropped, plain->Step({rows}, 0).loss);
  noisy->trainer(0).set_steps(1);
  EXPECT_NE(noisy->Step({rows}, 0).loss, dropped) << "another step, other numbers";
  EXPECT_EQ(noisy->Evaluate({rows}).loss, plain->Evaluate({rows}).loss);
}

// Rates at which no number of these is dropped, and factors are 1 in fp32: all bits are those without.  (What hidden
// dropout adds to the residual is added apart, which rounds otherwise.)
TEST_P(TrainingDropoutTest, WhereNothingIsDroppedBitsAreThoseWithout) {
  constexpr double kTiny = 1e-12;
  const auto run = [&](const model::NoiseRates& rates) {
    TrainingGroupOptions options = OptionsOf(golden_, DType::kF32, 2);
    options.trainer.noise = rates;
    const std::unique_ptr<TrainingGroup> group = Begin(golden_, options);
    Train(golden_, group.get(), 3);
    return group->Masters();
  };
  const Values without = run({});
  EXPECT_TRUE(run({.embedding = kTiny, .attention = kTiny, .router_jitter = kTiny}) == without);
  const Values hidden = run({.hidden = kTiny, .adapters = kTiny});
  for (const auto& [name, values] : without) {
    const std::vector<double>& other = hidden.at(name);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(other[i], values[i], 2e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, TrainingDropoutTest,
                         testing::Values("mixtral-window", "gpt2-top2", "lora-olmoe-clip"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(RowKeysTest, AreOfPlacesInTheStepsBatch) {
  const TrainRows rows = {
      .length = 3, .tokens = {1, 2, 3, 4, 5, 6}, .targets = {}, .borders = {2}, .first_sequence = 5};
  const auto key = [](int64_t sequence, int64_t position) {
    return ops::RowKey(ops::StepKey(9, 4), sequence, position);
  };
  EXPECT_EQ(RowKeysOf(rows, 9, 4),
            (std::vector<uint64_t>{key(5, 0), key(5, 1), key(5, 2), key(6, 0), key(6, 1), key(6, 2)}));
  // Packed: the second of three sequences has no rows, the first and third have two and three.
  const TrainRows packed = {.length = 3,
                            .tokens = {1, 2, 3, 4, 5},
                            .targets = {},
                            .borders = {1, 2, 4},
                            .packed = true,
                            .first_sequence = 5,
                            .begins = {0, 2, 2}};
  EXPECT_EQ(RowKeysOf(packed, 9, 4), (std::vector<uint64_t>{key(5, 0), key(5, 1), key(7, 0), key(7, 1), key(7, 2)}));
}

// Sequences that documents fill have the same numbers in either form; documents are apart in both.
TEST(DropoutOfDocumentsTest, PackedRowsDrawAsFullOnesDo) {
  const DropoutGolden golden = Load("mixtral-window");
  TrainingGroupOptions options = OptionsOf(golden);
  options.trainer.document_mask = true;
  TrainRows rows = RowsOfStep(golden.steps, 0);
  rows.borders = {5, 21 + 1, 21 + 20};
  TrainRows packed = rows;
  packed.packed = true;
  packed.borders = {5, 21, 21 + 1, 21 + 20, 42};
  packed.begins = {0, 21, 42};
  const auto loss = [&](const TrainRows& of) {
    const std::unique_ptr<TrainingGroup> group = Begin(golden, options);
    const double value = group->Step({of}, kLearningRate).loss;
    return std::make_pair(value, group->Masters());
  };
  const auto full = loss(rows);
  EXPECT_TRUE(loss(packed) == full);
  packed.begins = {0, 42};
  EXPECT_FALSE(loss(packed) == full);
}

TEST(DropoutOptionsTest, RatesOutsideTheirLimitsAreRefused) {
  const DropoutGolden golden = Load("mixtral-window");
  TrainingGroup group(golden.steps.dir, {});
  for (const double rate : {1.0, -0.5, std::nan("")}) {
    const TrainerOptions options = {.noise = {.attention = rate}, .max_sequences = 1, .max_length = 8};
    const absl::Status status = CheckTrainerOptions(options, group.model(0));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a rate of dropout or jitter is"));
  }
}

}  // namespace
}  // namespace switchyard::train
