// Jobs that pack experts with masters and moments in files: the bits of jobs in memory, after any fault or
// interruption.
#include <atomic>
#include <filesystem>
#include <set>

#include "absl/synchronization/mutex.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/packed_job_fixture.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/train/reduce/sparse_embedding.h"
#include "workers/train/step/train_outcome.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

using FileOr = absl::StatusOr<std::unique_ptr<StateFile>>;

class TrainJobPackingOffloadTest : public PackedJobFixture {
 protected:
  TrainJobPackingOffloadTest() { std::filesystem::create_directories(Directory()); }
  std::string Directory() const { return root_.path() + "/offload"; }
  jobs::JobSpec Packed(jobs::OffloadPolicy offload) const {
    jobs::JobSpec spec = PackedJobFixture::Packed();
    spec.offload = offload;
    return spec;
  }
  AttemptOptions InFiles(int64_t attempt, const Times& times) const {
    AttemptOptions options = Attempt(attempt, times);
    options.offload_dir = Directory();
    return options;
  }
  static std::vector<bool> InFile(const std::vector<StepProgress>& steps) {
    std::vector<bool> in_file;
    for (const StepProgress& step : steps) in_file.push_back(step.report.offloaded_bytes > 0);
    return in_file;
  }
  static absl::Status Full() {
    return Lost(absl::ResourceExhaustedError("offload: /d: write at byte 0: No space left on device"));
  }
  // Of two layers nothing would be saved: as many are in memory.
  model::ModelConfig UseDeepModel(jobs::JobSpec* spec) {
    std::string text = ReadAll(root_.path() + "/checkpoints/model/config.json");
    const std::string layers = "\"num_hidden_layers\": 2";
    text.replace(text.find(layers), layers.size(), "\"num_hidden_layers\": 6");
    std::filesystem::create_directories(root_.path() + "/checkpoints/deep");
    root_.Write("checkpoints/deep/config.json", text);
    spec->base_checkpoint.clear();
    spec->architecture = "deep";
    return *model::ReadModelConfig(root_.path() + "/checkpoints/deep");
  }
};

TEST_F(TrainJobPackingOffloadTest, HasTheBitsOfOneInMemory) {
  const Files expected = Whole();
  const std::vector<RankStory> stories = Run(Packed(jobs::OffloadPolicy::kAlways), InFiles(1, Measured));
  Finishes(stories);
  std::vector<int32_t> packings;
  for (const StepProgress& step : stories[0].steps) packings.push_back(step.packing);
  EXPECT_THAT(packings, ElementsAre(1, 1, 2, 2, 4, 4, 2, 2, 2, 2, 2, 2));
  EXPECT_EQ(InFile(stories[0].steps), std::vector<bool>(12, true));
  EXPECT_GT(stories[0].steps[4].report.offloaded_bytes, stories[0].steps[0].report.offloaded_bytes);
  EXPECT_EQ(ReadAll(JobPath(kPackingJournalName)), whole_journal_);
  EXPECT_TRUE(FilesOfStep(12) == expected);
  EXPECT_TRUE(std::filesystem::is_empty(Directory())) << "nothing is left";
}

// An attempt that breaks off, packed or between packings, goes on to the same bits, whether it has files before, after
// or both.
TEST_F(TrainJobPackingOffloadTest, InterruptedAnywhereItEndsWithTheSameBits) {
  const Files expected = Whole();
  for (const auto& [first, second] : {std::make_pair(jobs::OffloadPolicy::kAlways, jobs::OffloadPolicy::kAlways),
                                      std::make_pair(jobs::OffloadPolicy::kNever, jobs::OffloadPolicy::kAlways),
                                      std::make_pair(jobs::OffloadPolicy::kAlways, jobs::OffloadPolicy::kNever)}) {
    for (const int64_t at : {7, 8, 9}) {
      SCOPED_TRACE(testing::Message() << "step " << at);
      EXPECT_EQ(Run(Packed(first), TornAt(at, InFiles(1, Measured)))[0].end.outcome, jobs::TrainOutcome::kLost);
      Finishes(Run(Packed(second), InFiles(2, Covered)));
      EXPECT_TRUE(FilesOfStep(12) == expected);
      EXPECT_EQ(ReadAll(JobPath(kPackingJournalName)), whole_journal_);
      ForgetJob();
    }
  }
}

// Rank 1's file of the doubling is full when it is written: the decision stands, and another attempt makes it again.
TEST_F(TrainJobPackingOffloadTest, AFullDiskLosesTheAttemptAndNothingElse) {
  const Files expected = Whole();
  for (const int fails : {0, 3, 20}) {
    SCOPED_TRACE(fails);
    std::atomic<int> opened = 0, calls = 0;
    AttemptOptions options = InFiles(1, Measured);
    options.open_offload = [&](int rank, int64_t bytes) -> FileOr {
      if (rank != 1 || opened++ == 0) return std::make_unique<FakeStateFile>(bytes);
      return std::make_unique<FakeStateFile>(
          bytes, [&](bool writes, int64_t) { return writes && calls++ >= fails ? Full() : absl::OkStatus(); });
    };
    const std::vector<RankStory> lost = Run(Packed(jobs::OffloadPolicy::kAlways), options);
    for (const RankStory& story : lost) EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost) << story.end.status;
    EXPECT_EQ(lost[1].end.status.code(), absl::StatusCode::kResourceExhausted) << lost[1].end.status;
    EXPECT_EQ(Journal(), "3:1>2 grows");
    Finishes(Run(Packed(jobs::OffloadPolicy::kAlways), InFiles(2, Measured)));
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

// Where a rank's disk has no room for its file packing stays as it is, and the journal says why.
TEST_F(TrainJobPackingOffloadTest, ADiskWithoutRoomKeepsTheJobRunning) {
  std::atomic<int> opened = 0;
  AttemptOptions options = InFiles(1, Measured);
  options.open_offload = [&](int rank, int64_t bytes) -> FileOr {
    if (rank == 1 && opened++ > 0) return Full();
    return std::make_unique<FakeStateFile>(bytes);
  };
  const std::vector<RankStory> stories = Run(Packed(jobs::OffloadPolicy::kAlways), options);
  Finishes(stories);
  EXPECT_EQ(stories[0].steps.back().packing, 1);
  EXPECT_EQ(Journal(), "3:1>1 refused");
  EXPECT_THAT(ReadAll(JobPath(kPackingJournalName)), HasSubstr("why=rank 1: offload: /d: write at byte 0: No space"));
}

// … and where it was to pack as an attempt before had, the attempt is lost: there may be room later.
TEST_F(TrainJobPackingOffloadTest, ADiskWithoutRoomForWhatWasDecidedIsWaitedFor) {
  const Files expected = Whole();
  ASSERT_EQ(Run(Packed(jobs::OffloadPolicy::kAlways), TornAt(8, InFiles(1, Measured)))[0].end.outcome,
            jobs::TrainOutcome::kLost);
  std::atomic<int> opened = 0;
  AttemptOptions options = InFiles(2, Covered);
  options.open_offload = [&](int rank, int64_t bytes) -> FileOr {
    if (rank == 1 && opened++ > 0) return Full();
    return std::make_unique<FakeStateFile>(bytes);
  };
  for (const RankStory& story : Run(Packed(jobs::OffloadPolicy::kAlways), options)) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost);
    EXPECT_EQ(story.end.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(story.end.status.message()),
                AllOf(HasSubstr("no room for what was decided before"), HasSubstr("rank 1: offload: /d")));
  }
  Finishes(Run(Packed(jobs::OffloadPolicy::kAlways), InFiles(3, Covered)));
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

// With what is left of memory two of four ranks cannot hold twice as many experts, but for a file; when the doubling is
// undone they have room again.
TEST_F(TrainJobPackingOffloadTest, AutoTakesAFileForPackingAndGivesItBack) {
  jobs::JobSpec spec = Packed(jobs::OffloadPolicy::kNever);
  const model::ModelConfig config = UseDeepModel(&spec);
  const Times times = [](int64_t step, const StepReport&) { return Waiting(step <= 3 ? 100 : 120); };
  Finishes(Run(spec, Attempt(1, times)));
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>1 undone");
  const Files expected = FilesOfStep(12);
  ForgetJob();

  // Of an expert in a layer, in fp32.  Four that are new take 4 * 6 of these in each of six layers, and messages of
  // eight in one, 192; with a file 4 * 3, and 4 * 3 in two layers, 144.
  const int64_t one = 3 * config.hidden * config.expert_intermediate * 4;
  absl::Mutex mu;
  std::set<int> opened;
  std::atomic<bool> scarce = false, undone = false;
  std::atomic<int> late = 0;
  spec.offload = jobs::OffloadPolicy::kAuto;
  AttemptOptions options = Attempt(1, times);
  options.available_memory = [&] { return scarce ? 156 * one : kPlenty; };
  options.on_step = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) {
    scarce = progress.step >= 2;
    undone = progress.step >= 6;
  };
  options.open_offload = [&](int rank, int64_t bytes) -> FileOr {
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(opened.insert(rank).second) << "once";
    return std::make_unique<FakeStateFile>(bytes, [&](bool, int64_t) {
      late += undone ? 1 : 0;
      return absl::OkStatus();
    });
  };
  const std::vector<RankStory> stories = Run(spec, options);
  Finishes(stories);
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>1 undone");
  EXPECT_THAT(opened, ElementsAre(1, 2));
  EXPECT_EQ(late, 0) << "it is in memory again";
  EXPECT_TRUE(FilesOfStep(12) == expected);

  ForgetJob();
  spec.offload = jobs::OffloadPolicy::kNever;
  options.open_offload = nullptr;
  scarce = false;
  Finishes(Run(spec, options));
  EXPECT_EQ(Journal(), "3:1>1 refused");
}

// What does not fit into memory at first, but does later.
TEST_F(TrainJobPackingOffloadTest, AutoComesBackIntoMemoryWhenItPacks) {
  jobs::JobSpec spec = Packed(jobs::OffloadPolicy::kNever);
  const model::ModelConfig config = UseDeepModel(&spec);
  Finishes(Run(spec, Attempt(1, Measured)));
  const Files expected = FilesOfStep(12);
  ForgetJob();
  spec.offload = jobs::OffloadPolicy::kAuto;
  const TrainingNeed need = {
      .dtype = DType::kF32, .experts_per_layer = 2, .rows = 24, .world = 4, .gathered_rows = GatheredRows(96, 4)};
  const auto too_little = static_cast<int64_t>(TrainingMemory(config, need).total()) - 1;
  std::atomic<bool> plenty = false;
  AttemptOptions options = InFiles(1, Measured);
  options.available_memory = [&] { return plenty ? kPlenty : too_little; };
  options.on_step = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) { plenty = progress.step >= 1; };
  const std::vector<RankStory> stories = Run(spec, options);
  Finishes(stories);
  std::vector<bool> in_file(12, false);
  in_file[0] = in_file[1] = in_file[2] = true;
  EXPECT_EQ(InFile(stories[0].steps), in_file);
  EXPECT_THAT(stories[0].notes, AllOf(Contains(HasSubstr("keeps masters and moments of experts, ")),
                                      Contains("keeps masters and moments of experts in memory again")));
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

// An attempt that finds less memory than the one before had begins with files, goes the same way, and comes back into
// memory when it has fewer experts again.
TEST_F(TrainJobPackingOffloadTest, WithLessMemoryItGoesOnInFiles) {
  jobs::JobSpec spec = Packed(jobs::OffloadPolicy::kAuto);
  const model::ModelConfig config = UseDeepModel(&spec);
  Finishes(Run(spec, Attempt(1, Measured)));
  const Files expected = FilesOfStep(12);
  ForgetJob();
  EXPECT_EQ(Run(spec, StoppedAt(5, Attempt(1, Measured)))[0].end.outcome, jobs::TrainOutcome::kStopped);
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>4 grows");
  const TrainingNeed packed = {
      .dtype = DType::kF32, .experts_per_layer = 8, .rows = 24, .offload = true, .gathered_rows = GatheredRows(96, 4)};
  const auto enough = static_cast<int64_t>(TrainingMemory(config, packed).total());
  const int64_t one = 3 * config.hidden * config.expert_intermediate * 4;
  // Thrice by each rank before it begins.  Then it has room for masters and moments of four experts, 3 * 4 in six
  // layers.
  std::atomic<int> asked = 0;
  AttemptOptions options = InFiles(2, Measured);
  options.available_memory = [&] { return asked++ < 12 ? enough : 100 * one; };
  const std::vector<RankStory> stories = Run(spec, options);
  Finishes(stories);
  EXPECT_EQ(stories[0].start_step, 5);
  EXPECT_EQ(InFile(stories[0].steps), (std::vector<bool>{true, true, false, false, false, false, false}));
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>4 grows 7:4>2 undone");
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

}  // namespace
}  // namespace switchyard::train
