// Conversations that were packed into windows (best fit) train as if each were run alone.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/train/token_contents.h"
#include "tests/workers/train/training_group.h"
#include "workers/train/data/data_source.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

constexpr int64_t kLength = 48, kMicro = 3, kVocab = 256;

struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<bool> trained;
};

class WholeDocumentsTest : public ::testing::TestWithParam<std::string> {
 protected:
  WholeDocumentsTest() {
    std::minstd_rand random(11);
    TokenContents contents;
    contents.documents.clear();
    for (int i = 0; i < 25; ++i) {
      Conversation& each = conversations_.emplace_back();
      contents.documents.push_back(static_cast<int64_t>(contents.tokens.size()));
      // The longest have as many rows as a window.
      const auto count = static_cast<int64_t>(2 + random() % kLength);
      for (int64_t t = 0; t < count; ++t) {
        each.tokens.push_back(static_cast<int32_t>(random() % kVocab));
        each.trained.push_back(random() % 3 != 0);
      }
      contents.tokens.insert(contents.tokens.end(), each.tokens.begin(), each.tokens.end());
      contents.trained.insert(contents.trained.end(), each.trained.begin(), each.trained.end());
    }
    std::ofstream(dir_.path() + "/a.bin", std::ios::binary) << FileOf(contents, kVocab);
  }

  std::unique_ptr<DataSource> Source() const {
    const absl::StatusOr<RootDir> dir = RootDir::Open(dir_.path(), "the folder");
    std::vector<TokenFile> files;
    files.push_back(*TokenFile::Open(*dir, "a.bin"));
    absl::StatusOr<std::unique_ptr<DataSource>> source =
        DataSource::Create(std::move(files), {.length = kLength,
                                              .vocab = kVocab,
                                              .seed = 5,
                                              .in_order = true,
                                              .document_mask = true,
                                              .packing = jobs::WindowPacking::kBestFit});
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }
  TrainingGroupOptions Options(int world, bool mask) const {
    TrainingGroupOptions options = {.dtype = DType::kF64, .world = world};
    options.trainer.router.balance_weight = 0;  // it is over all rows of a micro-batch
    options.trainer.document_mask = mask;
    options.trainer.max_sequences = kMicro;
    options.trainer.max_length = kLength;
    return options;
  }
  // A rank's part of all windows.
  static std::vector<TrainRows> MicroBatches(DataSource* source, int rank, int world) {
    std::vector<TrainRows> mine;
    for (int64_t first = 0; first < source->num_windows(); first += kMicro * world) {
      const int64_t own = std::min(first + rank * kMicro, source->num_windows());
      mine.push_back(*source->Samples(own, std::min(kMicro, source->num_windows() - own)));
    }
    return mine;
  }

  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());
  const model::TempDir dir_;
  std::vector<Conversation> conversations_;
};

TEST_P(WholeDocumentsTest, LossAndGradientsAreThoseOfEachConversationAlone) {
  std::vector<TrainRows> alone;
  for (const Conversation& each : conversations_) {
    TrainRows& rows = alone.emplace_back();
    rows.length = static_cast<int64_t>(each.tokens.size()) - 1;
    rows.tokens.assign(each.tokens.begin(), each.tokens.end() - 1);
    for (size_t i = 1; i < each.tokens.size(); ++i) rows.targets.push_back(each.trained[i] ? each.tokens[i] : -1);
  }
  TrainingGroup reference(golden_.dir, Options(1, /*mask=*/false));
  const StepReport wanted = reference.Step(alone, /*learning_rate=*/0);
  const auto gradients = reference.Gradients();
  for (const int world : {1, 2}) {
    TrainingGroup group(golden_.dir, Options(world, /*mask=*/true));
    std::vector<StepReport> reports(static_cast<size_t>(world));
    const std::vector<absl::Status> statuses = group.OnEach([&](int rank) {
      const std::unique_ptr<DataSource> source = Source();
      const std::vector<TrainRows> mine = MicroBatches(source.get(), rank, world);
      absl::StatusOr<StepReport> report =
          group.trainer(rank).Step(mine, /*learning_rate=*/0, absl::Now() + absl::Seconds(120));
      if (report.ok()) reports[static_cast<size_t>(rank)] = *report;
      return report.status();
    });
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(reports[0].tokens, wanted.tokens);
    EXPECT_NEAR(reports[0].loss, wanted.loss, 1e-10 * wanted.loss) << world;
    EXPECT_EQ(reports[0].step_rows, wanted.step_rows) << "no row of padding is computed";
    for (const auto& [name, values] : group.Gradients()) {
      const std::vector<double>& of = gradients.at(name);
      double largest = 0, distance = 0;
      for (size_t i = 0; i < of.size(); ++i) {
        largest = std::max(largest, std::abs(of[i]));
        distance = std::max(distance, std::abs(of[i] - values[i]));
      }
      // (Keys' biases have none but for roundings.)
      if (name.find("k_proj.bias") != std::string::npos) largest = std::max(largest, 1.0);
      EXPECT_LE(distance, 1e-10 * largest) << name;
    }
  }
}

TEST_P(WholeDocumentsTest, RowsThatCannotBeAreNamed) {
  const auto problem = [&](int64_t count, std::vector<int32_t> borders, bool mask) {
    TrainerOptions options = {.max_sequences = 3, .max_length = 16};
    options.document_mask = mask;
    std::vector<TrainRows> rows(1);
    rows[0].length = 16;
    rows[0].tokens.assign(static_cast<size_t>(count), 1);
    rows[0].targets.assign(static_cast<size_t>(count), 1);
    rows[0].borders = std::move(borders);
    rows[0].packed = true;
    return std::string(CheckMicroBatches(options, kVocab, rows).message());
  };
  EXPECT_EQ(problem(37, {16, 20, 36}, true), "");
  EXPECT_EQ(problem(48, {16, 32}, true), "");
  EXPECT_THAT(problem(37, {16, 20, 36}, false), HasSubstr("packed rows, but document_mask is off"));
  EXPECT_THAT(problem(37, {17, 33}, true), HasSubstr("a document at token 0 of 17 tokens, at most 16 are allowed"));
  EXPECT_THAT(problem(37, {16}, true), HasSubstr("a document at token 16 of 21 tokens, at most 16 are allowed"));
  EXPECT_THAT(problem(49, {16, 32, 48}, true), HasSubstr("a micro-batch of 49 tokens"));
}

INSTANTIATE_TEST_SUITE_P(Goldens, WholeDocumentsTest,
                         ::testing::Values("gpt2-top2-documents", "mixtral-window-documents"),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
