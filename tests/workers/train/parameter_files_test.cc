// Trained parameters are saved, can be served, and training continues from them.
#include "workers/train/parameters/parameter_files.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/train/training_group.h"
#include "workers/checkpoint/files/posix_file_system.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"

namespace switchyard::train {
namespace {

class ParameterFilesTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<checkpoint::FileSystem> Files() {
    absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> files = checkpoint::OpenPosixFileSystem(root_.path());
    SY_CHECK_OK(files.status());
    return *std::move(files);
  }

  // Saves all ranks' parameters as a step.
  void Save(TrainingGroup* group, int world, int64_t step, DType weights) {
    const std::unique_ptr<checkpoint::FileSystem> files = Files();
    auto writer = checkpoint::CheckpointWriter::Open(files.get(), {.attempt = 1});
    SY_CHECK_OK(writer.status());
    std::vector<checkpoint::CheckpointFile> parts;
    const absl::StatusOr<ModelDir> model = ModelDir::Open(golden_.dir);
    SY_CHECK_OK(model.status());
    absl::StatusOr<std::vector<checkpoint::CheckpointFile>> side = checkpoint::SideFiles(*model);
    SY_CHECK_OK(side.status());
    parts = *std::move(side);
    for (int r = 0; r < world; ++r) {
      for (checkpoint::CheckpointFile& file : ParameterFiles(group->parameters(r).blocks(), r, world, weights)) {
        parts.push_back(std::move(file));
      }
    }
    const absl::StatusOr<std::string> folder = (*writer)->Begin(step, *checkpoint::BytesOfFiles(parts));
    SY_CHECK_OK(folder.status());
    const absl::StatusOr<std::vector<checkpoint::FileRecord>> records =
        checkpoint::WriteFiles(files.get(), *folder, parts);
    SY_CHECK_OK(records.status());
    SY_CHECK_OK((*writer)->Commit({.step = step, .saved_by = {.world = world}, .files = *records}));
  }

  absl::Status Restore(TrainingGroup* group, int world) {
    const std::unique_ptr<checkpoint::FileSystem> files = Files();
    const absl::StatusOr<checkpoint::FoundCheckpoint> found = checkpoint::FindCheckpoint(files.get());
    if (!found.ok()) return found.status();
    EXPECT_TRUE(found->rejected.empty());
    const absl::StatusOr<checkpoint::ShardTable> table =
        checkpoint::ShardTable::Open(files.get(), found->folder, found->manifest, "optimizer-");
    if (!table.ok()) return table.status();
    for (int r = 0; r < world; ++r) {
      if (absl::Status status = RestoreParameters(*table, &group->parameters(r)); !status.ok()) return status;
      SY_CHECK_OK(group->parameters(r).Publish(GatherCall()));
      group->trainer(r).set_steps(found->manifest.step);
    }
    return absl::OkStatus();
  }

  StepReport StepOf(TrainingGroup* group, size_t step) {
    return group->Step({RowsOfStep(golden_, step)}, kLearningRate);
  }

  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());
  const model::TempDir root_;
};

TEST_P(ParameterFilesTest, GoesOnWithTheSameBits) {
  TrainingGroup undisturbed(golden_.dir, {.world = 2});
  for (size_t i = 0; i < 3; ++i) StepOf(&undisturbed, i);
  Save(&undisturbed, 2, 3, DType::kBf16);
  for (size_t i = 3; i < 5; ++i) StepOf(&undisturbed, i);
  TrainingGroup resumed(golden_.dir, {.world = 2});
  ASSERT_TRUE(Restore(&resumed, 2).ok());
  for (size_t i = 3; i < 5; ++i) StepOf(&resumed, i);
  EXPECT_EQ(resumed.Masters(), undisturbed.Masters());
}

TEST_P(ParameterFilesTest, LoadsOnAnotherNumberOfRanks) {
  TrainingGroup before(golden_.dir, {.dtype = DType::kF64, .world = 2});
  for (size_t i = 0; i < 2; ++i) StepOf(&before, i);
  Save(&before, 2, 2, DType::kBf16);
  TrainingGroup after(golden_.dir, {.dtype = DType::kF64, .world = 4});
  ASSERT_TRUE(Restore(&after, 4).ok());
  EXPECT_EQ(after.Masters(), before.Masters());
  const double expected = StepOf(&before, 2).loss;
  EXPECT_NEAR(StepOf(&after, 2).loss, expected, 1e-10 * expected);
}

// The folder is a model directory: what serves from it has the trained model's loss and its bits.
TEST_P(ParameterFilesTest, Serves) {
  TrainingGroup trained(golden_.dir, {.world = 2});
  for (size_t i = 0; i < 3; ++i) StepOf(&trained, i);
  Save(&trained, 2, 3, DType::kF32);
  const std::string folder = root_.path() + "/step-00000003";
  TrainingGroup loaded(folder, {.world = 1});
  EXPECT_EQ(loaded.Masters(), trained.Masters());
  const std::vector<TrainRows> rows = {RowsOfStep(golden_, 4)};
  EXPECT_NEAR(loaded.Evaluate(rows).loss, trained.Evaluate(rows).loss, 1e-5);
  const std::vector<std::vector<int32_t>> prompts = {{3, 1, 4, 1, 5}, {9, 2, 6}};
  model::RankGroup one(folder, {.world = 1}), two(folder, {.world = 2}), untrained(golden_.dir, {.world = 1});
  const std::vector<std::vector<int32_t>> tokens = one.Greedy(prompts, 16);
  EXPECT_EQ(two.Greedy(prompts, 16), tokens);
  EXPECT_NE(untrained.Greedy(prompts, 16), tokens);
}

TEST_P(ParameterFilesTest, SaysWhatIsMissing) {
  TrainingGroup group(golden_.dir, {.world = 1});
  Save(&group, 1, 1, DType::kF32);
  TrainingGroup wide(golden_.dir, {.dtype = DType::kF64, .world = 1});
  const absl::Status status = Restore(&wide, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(".master\": expected fp64 ["), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(Goldens, ParameterFilesTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
