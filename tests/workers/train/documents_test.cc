// Documents within a sequence: attention ends at their borders and positions begin anew, forward and backward, as where
// each is run alone (PyTorch's results, tests/golden/training/make.py); and no bit of a document depends on another.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, std::vector<double>>;

TrainingGroupOptions Masked(DType dtype = DType::kF32, int world = 1) {
  TrainingGroupOptions options = {.dtype = dtype, .world = world};
  options.trainer.document_mask = true;
  options.trainer.max_length = 160;
  return options;
}

class DocumentsTest : public ::testing::TestWithParam<std::string> {
 protected:
  TrainRows Rows() const {
    return {.length = golden_.length, .tokens = golden_.tokens, .targets = golden_.targets, .borders = golden_.borders};
  }
  // The borders of all documents, those of sequences and the end too.
  std::vector<int64_t> Begins() const {
    std::vector<int64_t> begins(golden_.borders.begin(), golden_.borders.end());
    for (int64_t s = 0; s <= golden_.sequences; ++s) begins.push_back(s * golden_.length);
    std::sort(begins.begin(), begins.end());
    return begins;
  }
  Tensors GradientsOf(const TrainingGroupOptions& options, const std::vector<TrainRows>& micro_batches) const {
    TrainingGroup group(golden_.dir, options);
    group.Step(micro_batches, /*learning_rate=*/0);
    return group.Gradients();
  }
  // The largest difference of elements, over the largest element of the tensor, or of the queries' biases for those of
  // keys, whose gradient is zero but for roundings where nothing is rotated.
  template <class Wanted>
  static void ExpectNear(const Tensors& found, const Wanted& wanted, double tolerance) {
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, values] : wanted) {
      const std::vector<double>& is = found.at(name);
      ASSERT_EQ(is.size(), values.size()) << name;
      double largest = 0, distance = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(values[i])));
        distance = std::max(distance, std::abs(is[i] - static_cast<double>(values[i])));
      }
      if (name.find("k_proj.bias") != std::string::npos) largest = std::max(largest, 1.0);
      EXPECT_LE(distance, tolerance * largest) << name;
    }
  }
  void ExpectAutograd(const TrainingGroupOptions& options, double tolerance) {
    TrainingGroup group(golden_.dir, options);
    const StepReport report = group.Step({Rows()}, /*learning_rate=*/0);
    EXPECT_NEAR(report.loss, golden_.loss, tolerance * golden_.loss);
    EXPECT_NEAR(report.balance_loss, golden_.aux, tolerance * golden_.aux);
    ExpectNear(group.Gradients(), golden_.gradients, tolerance);
  }
  // The loss of the row alone: a function of its logits.
  static double LossOfRow(TrainingGroup* group, TrainRows rows, int64_t row) {
    const int32_t target = rows.tokens[row];
    std::fill(rows.targets.begin(), rows.targets.end(), -1);
    rows.targets[row] = target;
    return group->Evaluate({rows}).loss;
  }

  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());
};

TEST_P(DocumentsTest, GradientsOfFp64AreThoseOfEachAlone) { ExpectAutograd(Masked(DType::kF64), 1e-6); }
TEST_P(DocumentsTest, GradientsOfFp32AreThoseOfEachAlone) { ExpectAutograd(Masked(DType::kF32), 1e-4); }
TEST_P(DocumentsTest, GradientsOnTwoRanksToo) { ExpectAutograd(Masked(DType::kF64, 2), 1e-6); }
TEST_P(DocumentsTest, WithoutBordersTheyAreOthers) {
  TrainRows joined = Rows();
  joined.borders.clear();
  TrainingGroup group(golden_.dir, Masked(DType::kF64));
  EXPECT_GT(std::abs(group.Evaluate({joined}).loss - golden_.loss), 1e-3 * golden_.loss);
}

// The sum over documents that are sequences of their own, where no loss is over several rows.
TEST_P(DocumentsTest, GradientsAreTheSumOverDocuments) {
  TrainingGroupOptions options = Masked(DType::kF64);
  options.trainer.router.balance_weight = 0;
  const std::vector<int64_t> begins = Begins();
  std::vector<TrainRows> alone;
  for (size_t d = 0; d + 1 < begins.size(); ++d) {
    const auto part = [&](const std::vector<int32_t>& of) {
      return std::vector<int32_t>(of.begin() + begins[d], of.begin() + begins[d + 1]);
    };
    alone.push_back(
        {.length = begins[d + 1] - begins[d], .tokens = part(golden_.tokens), .targets = part(golden_.targets)});
  }
  const Tensors together = GradientsOf(options, {Rows()});
  options.trainer.document_mask = false;
  ExpectNear(together, GradientsOf(options, alone), 1e-12);
}

TEST_P(DocumentsTest, GradientsDoNotDependOnThreadsOrWhatIsKept) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TrainingGroupOptions options = Masked(dtype);
    const Tensors plain = GradientsOf(options, {Rows()});
    options.threads = 3;
    options.trainer.save = model::SavePolicy::kLayerInputs;
    EXPECT_EQ(GradientsOf(options, {Rows()}), plain);
  }
}

// A row's logits have the same bits whatever the document before has, which without borders they do not.
TEST_P(DocumentsTest, NoBitDependsOnAnotherDocument) {
  const std::vector<int64_t> begins = Begins();
  const int64_t document = 3, begin = begins[document], end = begins[document + 1];  // of the first sequence
  TrainRows other = Rows();
  for (int64_t i = 0; i < static_cast<int64_t>(other.tokens.size()); ++i) {
    if (i < begin || i >= end) other.tokens[i] = (other.tokens[i] + 101) % 256;
  }
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    TrainingGroup group(golden_.dir, Masked(dtype));
    for (const int64_t row : {begin, begin + 1, end - 1}) {
      EXPECT_EQ(LossOfRow(&group, Rows(), row), LossOfRow(&group, other, row)) << row;
      TrainRows joined = Rows(), others_joined = other;
      joined.borders.clear();
      others_joined.borders.clear();
      EXPECT_NE(LossOfRow(&group, joined, row), LossOfRow(&group, others_joined, row)) << row;
    }
  }
}

// A border at a sequence's begin is there anyway; rows without any have the bits of a trainer that expects none.
TEST_P(DocumentsTest, SequencesOfOneDocumentHaveTheBitsOfBefore) {
  TrainRows rows = Rows();
  rows.borders.clear();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TrainingGroupOptions options = Masked(dtype);
    TrainRows begins = rows;
    for (int64_t s = 0; s < golden_.sequences; ++s) begins.borders.push_back(static_cast<int32_t>(s * golden_.length));
    const Tensors masked = GradientsOf(options, {begins});
    options.trainer.document_mask = false;
    EXPECT_EQ(GradientsOf(options, {rows}), masked);
  }
}

TEST_P(DocumentsTest, BordersThatCannotBeAreNamed) {
  const auto problem = [&](std::vector<int32_t> borders, bool mask) {
    TrainerOptions options = {.max_sequences = 3, .max_length = 160};
    options.document_mask = mask;
    std::vector<TrainRows> rows = {Rows()};
    rows[0].borders = std::move(borders);
    return std::string(CheckMicroBatches(options, 256, rows).message());
  };
  EXPECT_THAT(problem({7}, false), HasSubstr("1 borders of documents, but document_mask is off"));
  EXPECT_THAT(problem({7, 7}, true), HasSubstr("a border at token 7 of 480, the one before at 7"));
  EXPECT_THAT(problem({480}, true), HasSubstr("a border at token 480 of 480, the one before at -1"));
  EXPECT_EQ(problem({0, 7, 479}, true), "");
  EXPECT_THAT(problem({-2}, true), HasSubstr("a border at token -2 of 480, the one before at -1"));
}

INSTANTIATE_TEST_SUITE_P(Goldens, DocumentsTest, ::testing::Values("gpt2-top2-documents", "mixtral-window-documents"),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
