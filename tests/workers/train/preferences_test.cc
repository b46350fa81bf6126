// Direct preference optimization: against PyTorch (tests/golden/preferences/make.py), over ranks and micro-batches, and
// its gradients against finite differences.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/train/preference_golden.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

class PreferencesTest : public ::testing::TestWithParam<std::string> {
 protected:
  // All steps' rows, with what the reference says of them.
  static std::vector<RankRows> Referred(const PreferenceGolden& golden, TrainingGroup* group, int world,
                                        int micro_batches, size_t steps) {
    std::vector<RankRows> all;
    for (size_t i = 0; i < steps; ++i) {
      all.push_back(Deal(golden.steps[i], world, micro_batches));
      Refer(group, &all.back());
    }
    return all;
  }

  const PreferenceGolden golden_ = LoadPreferenceGolden(GetParam());
};

TEST_P(PreferencesTest, TwentyStepsArePyTorchs) {
  ASSERT_EQ(golden_.steps.size(), 20u);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, OptionsOfPairs(golden_, dtype));
    const std::vector<RankRows> steps = Referred(golden_, group.get(), 1, 1, 20);
    double worst = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepReport report = RunPairs(group.get(), steps[i], kLearningRate);
      worst = std::max(worst, std::abs(report.loss - golden_.loss[i]));
      EXPECT_NEAR(report.loss, golden_.loss[i], 1e-4 * std::max(1.0, golden_.loss[i])) << "step " << i;
      EXPECT_NEAR(report.preferences->margin, golden_.margin[i], 1e-4 * std::max(1.0, std::abs(golden_.margin[i])))
          << "step " << i;
      // (At the first step all margins are 0 but for roundings.)
      if (i > 0) {
        EXPECT_EQ(report.preferences->accuracy, golden_.accuracy[i]) << "step " << i;
      }
      EXPECT_NEAR(report.gradient_norm, golden_.norm[i], 1e-3 * golden_.norm[i]) << "step " << i;
      EXPECT_EQ(report.preferences->pairs, 4);
    }
    RecordProperty(absl::StrCat("loss_distance_", DTypeName(dtype)), absl::StrCat(worst));
  }
}

TEST_P(PreferencesTest, RanksAndMicroBatchesChangeRoundingsAlone) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 2e-5)}) {
    TrainingGroupOptions options = OptionsOfPairs(golden_, dtype);
    options.trainer.router.balance_weight = 0;  // it is over the rows of a micro-batch
    const std::unique_ptr<TrainingGroup> one = BeginPairs(golden_, options);
    const std::vector<RankRows> alone = Referred(golden_, one.get(), 1, 1, 5);
    std::vector<StepReport> wanted;
    for (const RankRows& rows : alone) wanted.push_back(RunPairs(one.get(), rows, kLearningRate));
    for (const auto& [world, micro_batches] : {std::make_pair(1, 4), std::make_pair(2, 1), std::make_pair(2, 2)}) {
      options.world = world;
      const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
      const std::vector<RankRows> steps = Referred(golden_, group.get(), world, micro_batches, 5);
      for (size_t i = 0; i < steps.size(); ++i) {
        const StepReport report = RunPairs(group.get(), steps[i], kLearningRate);
        const double scale = std::max(1.0, std::abs(wanted[i].preferences->margin));
        EXPECT_NEAR(report.loss, wanted[i].loss, tolerance * scale) << world << " ranks, step " << i;
        EXPECT_NEAR(report.preferences->margin, wanted[i].preferences->margin, 10 * tolerance * scale);
        EXPECT_NEAR(report.gradient_norm, wanted[i].gradient_norm, 100 * tolerance * wanted[i].gradient_norm);
      }
      group->ExpectReplicasAlike();
    }
  }
}

// What the reference says of a pair does not depend on the pairs beside it, on ranks or threads.
TEST_P(PreferencesTest, LogProbabilitiesHaveTheSameBitsAnywhere) {
  std::vector<AnswerPair> pairs = golden_.steps[0];
  for (size_t i = 1; i < 12; ++i) pairs.insert(pairs.end(), golden_.steps[i].begin(), golden_.steps[i].end());
  TrainingGroupOptions options = OptionsOfPairs(golden_);
  options.trainer.max_sequences = 16;  // together more rows than the head has at a time
  std::vector<PairLogProbs> together;
  {
    const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
    RankRows all = {{RowsOfPairs(pairs)}};
    ASSERT_GT(all[0][0].tokens.size(), 2u * model::kLossRows);
    Refer(group.get(), &all);
    together = all[0][0].references;
  }
  ASSERT_EQ(together.size(), pairs.size());
  options.world = 2;
  options.threads = 2;
  const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    RankRows apart = {{RowsOfPairs(absl::MakeConstSpan(pairs).subspan(i, 1))},
                      {RowsOfPairs(absl::MakeConstSpan(pairs).subspan(i + 1, 1))}};
    Refer(group.get(), &apart);
    EXPECT_EQ(apart[0][0].references[0], together[i]);
    EXPECT_EQ(apart[1][0].references[0], together[i + 1]);
  }
  // A rank may have none.
  RankRows one = {{TrainRows{.length = kPairsLength, .packed = true}},
                  {RowsOfPairs(absl::MakeConstSpan(pairs).first(1))}};
  Refer(group.get(), &one);
  EXPECT_EQ(one[1][0].references[0], together[0]);
}

TEST_P(PreferencesTest, GradientsAreThoseOfFiniteDifferences) {
  TrainingGroupOptions options = OptionsOfPairs(golden_, DType::kF64);
  options.trainer.router.balance_weight = 0;
  options.trainer.optimizer.clip_norm = 0;
  const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
  RankRows rows = Deal(golden_.steps[3], 1, 2);
  Refer(group.get(), &rows);
  for (TrainRows& each : rows[0]) {  // else all margins are 0
    for (PairLogProbs& pair : each.references) pair.chosen -= 3;
  }
  const double loss = RunPairs(group.get(), rows, 0).loss;
  const std::map<std::string, std::vector<double>> gradients = group->Gradients();
  std::map<std::string, std::vector<double>> masters = group->Masters();
  EXPECT_NEAR(RunPairs(group.get(), rows, 0, /*evaluate=*/true).loss, loss, 1e-13);
  int checked = 0, number = 0;
  for (const auto& [name, gradient] : gradients) {
    // One number of some weights: the one that moves the loss most.  (Where routers choose others it is not smooth.)
    if (name.find("gate.weight") != std::string::npos || number++ % 3 != 0) continue;
    const auto at = static_cast<size_t>(std::max_element(gradient.begin(), gradient.end(),
                                                         [](double a, double b) { return std::abs(a) < std::abs(b); }) -
                                        gradient.begin());
    if (std::abs(gradient[at]) < 1e-6) continue;
    const double step = 1e-5, was = masters.at(name)[at];
    const auto moved = [&](double by) {
      masters.at(name)[at] = was + by;
      group->SetMasters(masters);
      return RunPairs(group.get(), rows, 0, /*evaluate=*/true).loss;
    };
    const double slope = (moved(step) - moved(-step)) / (2 * step);
    masters.at(name)[at] = was;
    EXPECT_NEAR(slope, gradient[at], 1e-5 * std::max(1.0, std::abs(gradient[at]))) << name;
    ++checked;
  }
  EXPECT_GT(checked, 2);
}

// The head has kLossRows at a time: a document across two pieces has the gradient that it has within one.
TEST_P(PreferencesTest, GradientsOfDocumentsAcrossPieces) {
  std::vector<AnswerPair> pairs;
  for (size_t i = 0; i < 12; ++i) pairs.insert(pairs.end(), golden_.steps[i].begin(), golden_.steps[i].end());
  TrainingGroupOptions options = OptionsOfPairs(golden_, DType::kF64);
  options.trainer.router.balance_weight = 0;
  options.trainer.optimizer.clip_norm = 0;
  options.trainer.max_sequences = 16;
  std::map<std::string, std::vector<double>> wanted;
  for (const int micro_batches : {12, 1}) {
    const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
    RankRows rows = Deal(pairs, 1, micro_batches);
    Refer(group.get(), &rows);
    for (TrainRows& each : rows[0]) {
      for (size_t i = 0; i < each.references.size(); ++i) each.references[i].chosen += static_cast<double>(i % 4) - 1.5;
    }
    RunPairs(group.get(), rows, 0);
    if (micro_batches > 1) {
      for (const TrainRows& each : rows[0]) ASSERT_LE(std::ssize(each.tokens), model::kLossRows);
      wanted = group->Gradients();
      continue;
    }
    ASSERT_GT(std::ssize(rows[0][0].tokens), 2 * model::kLossRows);
    EXPECT_THAT(rows[0][0].borders, testing::Not(testing::Contains(model::kLossRows))) << "a document is cut there";
    for (const auto& [name, gradient] : group->Gradients()) {
      double most = 0;
      for (const double value : gradient) most = std::max(most, std::abs(value));
      for (size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(gradient[i], wanted.at(name)[i], 1e-10 * most) << name;
    }
  }
}

TEST_P(PreferencesTest, LearnsInBf16) {
  const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, OptionsOfPairs(golden_, DType::kBf16, 2));
  RankRows rows = Deal(golden_.steps[0], 2, 1);
  Refer(group.get(), &rows);
  StepReport report;
  for (int i = 0; i < 12; ++i) report = RunPairs(group.get(), rows, kLearningRate);
  EXPECT_GE(report.preferences->accuracy, 0.75);
  EXPECT_LT(report.loss, 0.69);
}

// Layers that run again, and threads, change no bit.
TEST_P(PreferencesTest, TheSameStepsHaveTheSameBits) {
  const auto run = [&](const TrainingGroupOptions& options) {
    const std::unique_ptr<TrainingGroup> group = BeginPairs(golden_, options);
    for (const RankRows& rows : Referred(golden_, group.get(), 2, 2, 3)) RunPairs(group.get(), rows, kLearningRate);
    return std::make_pair(group->Masters(), group->Moments());
  };
  TrainingGroupOptions options = OptionsOfPairs(golden_, DType::kF32, 2);
  const auto first = run(options);
  options.threads = 2;
  options.trainer.save = model::SavePolicy::kLayerInputs;
  EXPECT_TRUE(run(options) == first);
}

INSTANTIATE_TEST_SUITE_P(Goldens, PreferencesTest,
                         testing::Values("olmoe-clip", "qwen3-qknorm", "mixtral-window", "lora-olmoe-clip",
                                         "experts-olmoe-clip"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(PreferenceRowsTest, WhatIsNoPairIsNamed) {
  const PreferenceGolden golden = LoadPreferenceGolden("olmoe-clip");
  const TrainRows good = RowsOfPairs(golden.steps[0]);
  const auto problem = [](TrainRows rows, bool referred) {
    return std::string(CheckPairs(absl::MakeConstSpan(&rows, 1), referred).message());
  };
  EXPECT_EQ(problem(good, false), "");
  EXPECT_EQ(problem({}, true), "");
  EXPECT_THAT(problem(good, true), HasSubstr("log probabilities of the reference for 0 of 4 pairs"));
  TrainRows rows = good;
  rows.pairs.pop_back();
  EXPECT_THAT(problem(rows, false), HasSubstr("8 documents of 3 pairs of answers"));
  rows = good;
  rows.packed = false;
  EXPECT_THAT(problem(rows, false), HasSubstr("pairs of answers that are not packed"));
  rows = good;
  rows.references.resize(4);
  EXPECT_EQ(problem(rows, true), "");
  rows.references[2].rejected = std::nan("");
  EXPECT_THAT(problem(rows, true), HasSubstr("log probabilities of the reference are missing"));
}

}  // namespace
}  // namespace switchyard::train
