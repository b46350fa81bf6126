// The gradients of every parameter against PyTorch's autograd, and against finite differences; and that they do not
// depend on ranks, threads, delays, micro-batches and what is kept.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

TrainRows RowsOf(const TrainingGolden& golden) {
  return {.length = golden.length, .tokens = golden.tokens, .targets = golden.targets};
}

// A step that changes nothing but the gradients.
StepReport Differentiate(TrainingGroup* group, const std::vector<TrainRows>& micro_batches) {
  return group->Step(micro_batches, /*learning_rate=*/0);
}

// What differences are measured by: the tensor's largest element.  But where nothing is rotated a bias of all keys
// shifts all scores of a row alike, so its gradient is zero but for roundings: then it is the queries' bias.
template <class Golden>
double LargestOf(const Golden& golden, const std::string& name) {
  double largest = 0;
  for (const double value : golden.at(name)) largest = std::max(largest, std::abs(value));
  if (!absl::EndsWith(name, "k_proj.bias")) return largest;
  const double of_queries = LargestOf(golden, absl::StrReplaceAll(name, {{"k_proj", "q_proj"}}));
  return largest < 1e-4 * of_queries ? of_queries : largest;
}

// The largest difference of a tensor's elements over LargestOf, the worst of all tensors, and which that is.
template <class Golden>
std::pair<double, std::string> WorstDistance(const Values& found, const Golden& golden) {
  std::pair<double, std::string> worst = {0, ""};
  for (const auto& [name, values] : golden) {
    const auto it = found.find(name);
    if (it == found.end() || it->second.size() != values.size()) {
      return {std::numeric_limits<double>::infinity(), name};
    }
    const double largest = LargestOf(golden, name);
    double distance = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(it->second[i] - values[i]);
      if (!(difference <= distance)) distance = difference;
    }
    if (largest > 0) distance /= largest;  // (zeros: an expert that no row chose)
    if (!(distance <= worst.first)) worst = {distance, name};
  }
  return worst;
}

class GradientsTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());

  Values GradientsWith(const TrainingGroupOptions& options) {
    TrainingGroup group(golden_.dir, options);
    Differentiate(&group, {RowsOf(golden_)});
    return group.Gradients();
  }

  void ExpectAutograd(DType dtype, double tolerance) {
    TrainingGroup group(golden_.dir, {.dtype = dtype});
    const StepReport report = Differentiate(&group, {RowsOf(golden_)});
    EXPECT_NEAR(report.loss, golden_.loss, tolerance * golden_.loss);
    EXPECT_NEAR(report.balance_loss, golden_.aux, tolerance * golden_.aux);
    const Values found = group.Gradients();
    EXPECT_EQ(found.size(), golden_.gradients.size());
    const auto [distance, name] = WorstDistance(found, golden_.gradients);
    RecordProperty("distance", std::to_string(distance));
    EXPECT_LT(distance, tolerance) << name;
  }
};

TEST_P(GradientsTest, OfFp32AreAutograds) { ExpectAutograd(DType::kF32, 1e-4); }
// (transformers itself casts to fp32 in norms and routers.)
TEST_P(GradientsTest, OfFp64AreAutograds) { ExpectAutograd(DType::kF64, 1e-5); }
// Rounded products: near, in the norm of each tensor.
TEST_P(GradientsTest, OfBf16AreNear) {
  TrainingGroup group(golden_.dir, {.dtype = DType::kBf16});
  const StepReport report = Differentiate(&group, {RowsOf(golden_)});
  EXPECT_NEAR(report.loss, golden_.loss, 0.03 * golden_.loss);
  double dot = 0, norm = 0, found_norm = 0;
  const Values found = group.Gradients();
  for (const auto& [name, values] : golden_.gradients) {
    ASSERT_EQ(found.at(name).size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      dot += found.at(name)[i] * values[i];
      norm += double{values[i]} * values[i];
      found_norm += found.at(name)[i] * found.at(name)[i];
    }
  }
  EXPECT_GT(dot / std::sqrt(norm * found_norm), 0.98);
}

// A forward pass that saves gives the same result.
TEST_P(GradientsTest, AreOfTheForwardThatServes) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TrainingGroup group(golden_.dir, {.dtype = dtype, .world = 2});
    const double served = group.Evaluate({RowsOf(golden_)}).loss;
    EXPECT_EQ(Differentiate(&group, {RowsOf(golden_)}).loss, served);
  }
}

TEST_P(GradientsTest, DoNotDependOnRanks) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
    const Values alone = GradientsWith({.dtype = dtype});
    for (const int world : {2, 4}) {
      const auto [distance, name] = WorstDistance(GradientsWith({.dtype = dtype, .world = world}), alone);
      EXPECT_LT(distance, tolerance) << name << " on " << world << " ranks";
    }
  }
}

TEST_P(GradientsTest, DoNotDependOnThreadsOrWhatIsKept) {
  const Values alone = GradientsWith({});
  EXPECT_EQ(GradientsWith({.threads = 3}), alone);
  // Also where layers that run again exchange rows, and a rank has none.
  for (const int world : {1, 2, 4}) {
    TrainingGroupOptions inputs = {.world = world};
    inputs.trainer.save = model::SavePolicy::kLayerInputs;
    EXPECT_EQ(GradientsWith(inputs), world == 1 ? alone : GradientsWith({.world = world}));
  }
}

TEST_P(GradientsTest, DoNotDependOnDelays) {
  const Values prompt = GradientsWith({.world = 2});
  int64_t launch = 0;
  const Values late =
      GradientsWith({.world = 2, .wrap = [&](std::unique_ptr<comm::Communicator> inner) {
                       launch += 3;
                       return comm::MakeFaultyCommunicator(std::move(inner), {.kind = comm::CommFault::Kind::kDelay,
                                                                              .at_launch = launch,
                                                                              .delay = absl::Milliseconds(30)});
                     }});
  EXPECT_EQ(late, prompt);
}

TEST_P(GradientsTest, OfMicroBatchesAddUp) {
  TrainingGroupOptions options = {.dtype = DType::kF64};
  options.trainer.router.balance_weight = 0;  // that is each micro-batch's own
  const Values whole = GradientsWith(options);
  TrainingGroup group(golden_.dir, options);
  std::vector<TrainRows> parts;
  for (int64_t s = 0; s < golden_.sequences; ++s) {
    const auto part = [&](const std::vector<int32_t>& of) {
      return std::vector<int32_t>(of.begin() + s * golden_.length, of.begin() + (s + 1) * golden_.length);
    };
    parts.push_back({.length = golden_.length, .tokens = part(golden_.tokens), .targets = part(golden_.targets)});
  }
  Differentiate(&group, parts);
  const auto [distance, name] = WorstDistance(group.Gradients(), whole);
  EXPECT_LT(distance, 1e-12) << name;
}

// A mean over micro-batches, of the losses that each has of its own, too.
TEST_P(GradientsTest, OfTheSameMicroBatchTwiceAreTheOnes) {
  for (const jobs::BalanceLoss balance : {jobs::BalanceLoss::kAllLayers, jobs::BalanceLoss::kPerLayer}) {
    TrainingGroupOptions options = {.dtype = DType::kF64};
    options.trainer.router = {.balance = balance, .balance_weight = kAuxWeight, .z_weight = kAuxWeight};
    TrainingGroup group(golden_.dir, options);
    const StepReport once = Differentiate(&group, {RowsOf(golden_)});
    const Values expected = group.Gradients();
    const StepReport twice = Differentiate(&group, {RowsOf(golden_), RowsOf(golden_)});
    EXPECT_NEAR(twice.balance_loss, once.balance_loss, 1e-12 * once.balance_loss);
    EXPECT_NEAR(twice.z_loss, once.z_loss, 1e-12 * once.z_loss);
    if (balance == jobs::BalanceLoss::kAllLayers) {
      EXPECT_NEAR(twice.balance_loss, golden_.aux, 1e-5 * golden_.aux);
    }
    const auto [distance, name] = WorstDistance(group.Gradients(), expected);
    EXPECT_LT(distance, 1e-12) << name;
  }
}

// Central differences in fp64 of some elements of every parameter, of all that a step makes smaller.  Shares of choices
// are constants to the gradient and to the differences, as long as no row chooses otherwise: one that did would move
// the loss by far more than the tolerance.
void ExpectFiniteDifferences(const TrainingGolden& golden, const RouterLossOptions& router) {
  TrainingGroupOptions options = {.dtype = DType::kF64};
  options.trainer.router = router;
  TrainingGroup group(golden.dir, options);
  const auto objective = [&] {
    const StepReport report = Differentiate(&group, {RowsOf(golden)});
    return report.loss + router.balance_weight * report.balance_loss + router.z_weight * report.z_loss;
  };
  const double begin = objective();
  std::vector<ParameterBlock>& blocks = group.parameters(0).blocks();
  std::vector<std::vector<double>> gradients;  // the steps below write theirs over them
  for (const ParameterBlock& block : blocks) {
    const auto* const gradient = block.gradient.data<double>();
    gradients.emplace_back(gradient, gradient + block.size());
  }
  constexpr double kStep = 1e-6;
  const double resolution = std::max(1e-9, 2 * begin * std::numeric_limits<double>::epsilon() / kStep);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const std::vector<double>& gradient = gradients[b];
    const auto objective_at = [&](int64_t i, double difference) {
      double& element = blocks[b].master.data<double>()[i];
      const double value = std::exchange(element, element + difference);
      SY_CHECK_OK(group.parameters(0).Publish(GatherCall()));
      element = value;  // the next one publishes it
      return objective();
    };
    // The largest one, which says the most, and one somewhere.
    const int64_t largest = std::max_element(gradient.begin(), gradient.end(),
                                             [](double x, double y) { return std::abs(x) < std::abs(y); }) -
                            gradient.begin();
    for (const int64_t i : {largest, blocks[b].size() / 3}) {
      const double up = objective_at(i, kStep), down = objective_at(i, -kStep);
      EXPECT_NEAR((up - down) / (2 * kStep), gradient[i], 1e-6 * std::abs(gradient[largest]) + resolution)
          << blocks[b].parts[0].name << " element " << i;
    }
  }
}

TEST_P(GradientsTest, AreFiniteDifferences) { ExpectFiniteDifferences(golden_, {.balance_weight = 0}); }
TEST_P(GradientsTest, AreFiniteDifferencesWithZLossAndBalanceOverAllLayers) {
  ExpectFiniteDifferences(golden_, {.balance = jobs::BalanceLoss::kAllLayers, .balance_weight = 0.3, .z_weight = 0.05});
}
TEST_P(GradientsTest, AreFiniteDifferencesWithZLossAndBalanceInEachLayer) {
  ExpectFiniteDifferences(golden_, {.balance = jobs::BalanceLoss::kPerLayer, .balance_weight = 0.3, .z_weight = 0.05});
}

INSTANTIATE_TEST_SUITE_P(Goldens, GradientsTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
