// Routers' losses are of all ranks' rows: on any number of ranks their values are the same, and so are the trained
// parameters, packed or not, with one micro-batch and with several.
#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

constexpr double kTolerance = 1e-10;
constexpr size_t kSteps = 3;

struct Losses {
  jobs::BalanceLoss balance = jobs::BalanceLoss::kPerLayer;
  size_t micro_batches = 1;
};

std::string NameOf(const Losses& losses) {
  return absl::StrCat(losses.balance == jobs::BalanceLoss::kPerLayer ? "PerLayer" : "AllLayers", "Of",
                      losses.micro_batches, losses.micro_batches == 1 ? "MicroBatch" : "MicroBatches");
}
void PrintTo(const Losses& losses, std::ostream* out) { *out << NameOf(losses); }

class RouterLossRanksTest : public testing::TestWithParam<Losses> {
 protected:
  struct Outcome {
    std::vector<StepReport> steps;
    Values first_gradients, masters;
  };

  // Weights are so large that what the losses add is not lost beside the cross-entropy.
  static Outcome Train(const TrainingGolden& golden, int world, int packing, double weight = 0.3) {
    TrainingGroupOptions options = {.dtype = DType::kF64, .world = world, .packing = packing};
    options.trainer.router = {.balance = GetParam().balance, .balance_weight = weight, .z_weight = weight / 10};
    TrainingGroup group(golden.dir, options);
    Outcome outcome;
    for (size_t i = 0; i < kSteps; ++i) {
      std::vector<TrainRows> rows;
      for (size_t m = 0; m < GetParam().micro_batches; ++m) {
        rows.push_back(RowsOfStep(golden, GetParam().micro_batches * i + m));
      }
      outcome.steps.push_back(group.Step(rows, kLearningRate));
      if (i == 0) outcome.first_gradients = group.Gradients();
    }
    outcome.masters = group.Masters();
    return outcome;
  }

  static double LargestDifference(const Values& one, const Values& other) {
    EXPECT_EQ(one.size(), other.size());
    double difference = 0;
    for (const auto& [name, values] : one) {
      for (size_t i = 0; i < values.size(); ++i) {
        difference = std::max(difference, std::abs(values[i] - other.at(name)[i]));
      }
    }
    return difference;
  }
};

INSTANTIATE_TEST_SUITE_P(Losses, RouterLossRanksTest,
                         testing::Values(Losses{jobs::BalanceLoss::kPerLayer, 1},
                                         Losses{jobs::BalanceLoss::kPerLayer, 2},
                                         Losses{jobs::BalanceLoss::kAllLayers, 2}),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(RouterLossRanksTest, AreOfAllRanksRows) {
  for (const std::string& name : TrainingGoldenNames()) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    const Outcome alone = Train(golden, 1, 1);
    for (const auto& [world, packing] : {std::pair(2, 1), std::pair(4, 1), std::pair(4, 2)}) {
      SCOPED_TRACE(absl::StrCat(name, " on ", world, " ranks, packing ", packing));
      const Outcome here = Train(golden, world, packing);
      for (size_t i = 0; i < kSteps; ++i) {
        const StepReport &step = here.steps[i], &expected = alone.steps[i];
        EXPECT_NEAR(step.loss, expected.loss, kTolerance * expected.loss) << "step " << i;
        EXPECT_NEAR(step.balance_loss, expected.balance_loss, kTolerance * expected.balance_loss) << "step " << i;
        EXPECT_NEAR(step.z_loss, expected.z_loss, kTolerance * expected.z_loss) << "step " << i;
        EXPECT_NEAR(step.gradient_norm, expected.gradient_norm, kTolerance * expected.gradient_norm) << "step " << i;
      }
      EXPECT_LT(LargestDifference(here.first_gradients, alone.first_gradients), kTolerance);
      EXPECT_LT(LargestDifference(here.masters, alone.masters), kTolerance);
    }
  }
}

// So that what is compared above is not of the cross-entropy alone.
TEST_P(RouterLossRanksTest, ChangeWhatIsTrained) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  const Outcome with = Train(golden, 2, 1), without = Train(golden, 2, 1, /*weight=*/0);
  EXPECT_GT(with.steps[0].balance_loss, 0.5);
  EXPECT_GT(with.steps[0].z_loss, 0.5);
  EXPECT_GT(LargestDifference(with.first_gradients, without.first_gradients), 1e-3);
  EXPECT_GT(LargestDifference(with.masters, without.masters), 1e-4);
}

}  // namespace
}  // namespace switchyard::train
