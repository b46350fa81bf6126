// The distribution of a model's random weights.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

class ParametersInitialTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());
  TrainingGroup group_{golden_.dir, {.dtype = DType::kF64}};
};

// By the names that families give what a layer adds to its input.
bool WritesResidual(const std::string& name) {
  for (const char* const end :
       {"o_proj.weight", "attn.c_proj.weight", "down_proj.weight", "w2.weight", "mlp.c_proj.weight"}) {
    if (absl::EndsWith(name, end)) return true;
  }
  return false;
}

double DeviationOf(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

TEST_P(ParametersInitialTest, WhatWritesTheResidualIsSmallerByTheRootOfItsWriters) {
  ASSERT_TRUE(group_.parameters(0).Initialise({.seed = 3, .range = 0.5}).ok());
  const double residual = 0.5 / std::sqrt(2.0 * static_cast<double>(group_.model(0).config().num_layers()));
  std::map<std::string, std::vector<double>> masters = group_.Masters();
  int64_t written = 0;
  for (const ParameterBlock& block : group_.parameters(0).blocks()) {
    for (const model::Param& part : block.parts) {
      const std::vector<double>& values = masters.at(part.name);
      if (part.shape.size() == 1) {
        const double expected = absl::EndsWith(part.name, "bias") ? 0 : 1;
        EXPECT_EQ(values, std::vector<double>(values.size(), expected)) << part.name;
        continue;
      }
      const double expected = WritesResidual(part.name) ? residual : 0.5;
      written += WritesResidual(part.name);
      // Five times the deviation of the estimate.
      const double tolerance = 5 * expected / std::sqrt(2.0 * static_cast<double>(values.size()));
      EXPECT_NEAR(DeviationOf(values), expected, tolerance) << part.name << " of " << values.size();
    }
  }
  // Attention's of each layer, and each expert's.
  EXPECT_GT(written, 2 * group_.model(0).config().num_layers());
}

INSTANTIATE_TEST_SUITE_P(Goldens, ParametersInitialTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
