// Jobs that choose into how many chunks MoE layers cut their rows: interrupted at any time they cut as they would have.
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/comm_modes.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/chunks/chunk_journal.h"
#include "workers/train/job/decision_log.h"

namespace switchyard::train {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class TrainJobChunksTest : public JobFixture {
 protected:
  using Files = std::map<std::string, std::string>;

  jobs::JobSpec SpecOf(const char* granularity, jobs::CommMode mode = jobs::CommMode::kPreempt) const {
    jobs::JobSpec spec = Spec();
    spec.communication.mode = mode;
    spec.communication.granularity = *jobs::ParseGranularity(granularity);
    return spec;
  }
  static AttemptOptions Attempt(int64_t attempt, int world = 2) { return {.world = world, .attempt = attempt}; }
  static AttemptOptions TornAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == at) comm->Abort("torn down by the test");
    };
    return options;
  }
  static AttemptOptions StoppedAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == at) job->Stop(jobs::StopKind::kSave);
    };
    return options;
  }
  static void Finishes(const std::vector<RankStory>& stories) {
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      EXPECT_THAT(story.warnings, IsEmpty());
    }
  }
  static std::vector<int32_t> ChunksOf(const RankStory& story) {
    std::vector<int32_t> chunks;
    for (const StepProgress& step : story.steps) chunks.push_back(step.report.chunks);
    return chunks;
  }
  std::string Log() const { return ReadAll(JobPath(kChunkJournalName)); }
  // The decision in it: "0:4", the step and the chunks, which are a power of two where they were measured.
  std::string Journal() const {
    const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(Log());
    if (!journal.ok()) return journal.status().ToString();
    if (!journal->decision.has_value()) return "none";
    return absl::StrCat(journal->decision->step, ":", journal->decision->chunks);
  }
  void WriteLog(const std::string& text) {
    std::filesystem::create_directories(JobPath());
    root_.Write("checkpoints/job/chunks.log", text);
  }
  // As an attempt writes it that has decided before its first step.
  static std::string LogOf(int32_t chunks, int world = 2) {
    return EncodeChunkJournal(
        {.attempt = 1, .decision = jobs::ChunkDecision{.world = world, .rows = 2 * 12 * world, .chunks = chunks}});
  }
};

// Sums are the same in all modes, so with one number of chunks bits are; with another they are not.
TEST_F(TrainJobChunksTest, EveryModeCutsAsItIsTold) {
  const Files uncut = Undisturbed(SpecOf("1"), 2);
  Files cut;
  for (const jobs::CommMode mode : AllCommModes()) {
    SCOPED_TRACE(jobs::CommModeName(mode));
    const std::vector<RankStory> stories = Run(SpecOf("3", mode), Attempt(1));
    Finishes(stories);
    EXPECT_THAT(ChunksOf(stories[0]), Each(3));
    if (cut.empty()) cut = FilesOfStep(12);
    EXPECT_TRUE(FilesOfStep(12) == cut);
    EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName))) << "nothing is decided";
    ForgetJob();
  }
  EXPECT_FALSE(uncut == cut);
}

// Nothing but the log knows: three chunks are never measured.
TEST_F(TrainJobChunksTest, InterruptedAnywhereItEndsWithTheSameBits) {
  const Files expected = Undisturbed(SpecOf("3"), 2);
  for (const int64_t at : {1, 6, 9, 11}) {
    for (const bool torn : {true, false}) {
      SCOPED_TRACE(testing::Message() << "step " << at << (torn ? " torn" : " stopped"));
      WriteLog(LogOf(3));
      const std::vector<RankStory> disturbed =
          Run(SpecOf("auto"), torn ? TornAt(at, Attempt(1)) : StoppedAt(at, Attempt(1)));
      EXPECT_EQ(disturbed[0].end.outcome, torn ? jobs::TrainOutcome::kLost : jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(2));
      Finishes(resumed);
      EXPECT_LE(resumed[0].start_step, at);
      EXPECT_THAT(ChunksOf(resumed[0]), Each(3));
      EXPECT_TRUE(FilesOfStep(12) == expected);
      EXPECT_EQ(Log(), LogOf(3)) << "nothing is decided again";
      ForgetJob();
    }
  }
}

TEST_F(TrainJobChunksTest, AutoMeasuresAndDecidesBeforeTheFirstStep) {
  const std::vector<RankStory> stories = Run(SpecOf("auto"), TornAt(6, Attempt(1)));
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kLost);
  const std::string log = Log();
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(log);
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_TRUE(journal->decision.has_value());
  const jobs::ChunkDecision& decision = *journal->decision;
  EXPECT_EQ(decision.step, 0);
  EXPECT_EQ(decision.rows, 48);
  EXPECT_THAT(decision.chunks, AnyOf(1, 2, 4, 8));
  EXPECT_THAT(decision.why, testing::ContainsRegex("^1 chunk .* ms, 2 chunks .* ms, 4 chunks .* ms, 8 chunks .* ms; "
                                                   "measured in "));
  EXPECT_THAT(ChunksOf(stories[0]), Each(decision.chunks));
  EXPECT_THAT(stories[0].notes, testing::Contains(decision.ToString()));
  // It does not measure again.
  const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(2));
  Finishes(resumed);
  EXPECT_EQ(Log(), log);
  const Files files = FilesOfStep(12);
  ForgetJob();
  EXPECT_TRUE(Undisturbed(SpecOf(absl::StrCat(decision.chunks).c_str()), 2) == files);
}

// Layers are measured with their activations in a file.
TEST_F(TrainJobChunksTest, AutoMeasuresWhatIsRestored) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.restore = {pipeline::InputRestore::kOffload, pipeline::HiddenRestore::kOffload};
  AttemptOptions options = Attempt(1);
  std::filesystem::create_directories(root_.path() + "/offload");
  options.offload_dir = root_.path() + "/offload";
  Finishes(Run(spec, options));
  EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
}

// The next attempt measures again.
TEST_F(TrainJobChunksTest, ADecisionThatIsNotOnTheDiskIsNotTaken) {
  AttemptOptions options = Attempt(1);
  const auto full = [](const std::string& path) -> absl::Status {
    if (!absl::StartsWith(path, "chunks.log")) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(path, ": No space left on device"));
  };
  options.wrap_files = [&](std::unique_ptr<checkpoint::FileSystem> files, int rank) {
    if (rank > 0) return files;
    return std::unique_ptr<checkpoint::FileSystem>(std::make_unique<HookedFileSystem>(std::move(files), full));
  };
  for (const RankStory& story : Run(SpecOf("auto"), options)) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost) << story.end.status;
    EXPECT_THAT(std::string(story.end.status.message()), HasSubstr("rank 0: chunks.log.tmp-1: No space left"));
    EXPECT_THAT(story.steps, IsEmpty());
  }
  EXPECT_EQ(Log(), "");
  const std::vector<RankStory> next = Run(SpecOf("auto"), Attempt(2));
  Finishes(next);
  EXPECT_EQ(next[0].start_step, 0);
  EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
}

TEST_F(TrainJobChunksTest, GoesWithReplicasOfExperts) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = 2};
  const std::vector<RankStory> stories = Run(spec, Attempt(1, 4));
  Finishes(stories);
  EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(Log());
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_TRUE(journal->decision.has_value());
  EXPECT_EQ(journal->decision->rows, 2 * 12 * 4) << "of all ranks";
  EXPECT_THAT(ChunksOf(stories[0]), Each(journal->decision->chunks));
  ForgetJob();
  // With an expert on every rank no row leaves its own.
  spec.communication.packing.replicas = 4;
  Finishes(Run(spec, Attempt(1, 4)));
  EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName)));
}

// What auto has decided stays, whatever the trials of packing change.
TEST_F(TrainJobChunksTest, AutoGoesWithTrialsOfPacking) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.communication.packing = {.rule = jobs::PackingRule::kTrials, .replicas = 0};
  AttemptOptions options = Attempt(1, 4);
  options.packing = {.first_step = 3, .every_steps = 2};
  options.packing_times = [](int64_t step, const StepReport&) -> jobs::PackingTimes {
    return {.experts_ns = 1000,
            .all_to_all_ns = 4000,
            .micro_ops = 1,
            .step_ns = 1'000'000 * (100 - step),  // each doubling helps
            .sums_ns = 1'000'000,
            .steps = 1};
  };
  const std::vector<RankStory> stories = Run(spec, options);
  Finishes(stories);
  EXPECT_GT(stories[0].steps.back().packing, 1);
  EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
  EXPECT_THAT(ChunksOf(stories[0]), Each(stories[0].steps[0].report.chunks));
}

TEST_F(TrainJobChunksTest, AJournalThatDoesNotCount) {
  const std::pair<std::string, std::string> kLogs[] = {
      {LogOf(3, 4), "it is of 4 ranks, there are 2: after step 0: 96 rows in 3 chunks"},
      {LogOf(65), "65 chunks are outside [1, 64]: after step 0: "}};
  for (const auto& [log, problem] : kLogs) {
    SCOPED_TRACE(problem);
    WriteLog(log);
    const std::vector<RankStory> stories = Run(SpecOf("auto"), Attempt(2));
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    ASSERT_THAT(stories[0].warnings, SizeIs(1));
    EXPECT_THAT(stories[0].warnings[0], HasSubstr(absl::StrCat("chunks.log does not count: ", problem)));
    EXPECT_THAT(stories[0].warnings[0], HasSubstr("; into how many chunks layers are cut is decided anew"));
    EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
    ForgetJob();
  }
}

// Of a job that chose by trying in its steps, as jobs once did.
TEST_F(TrainJobChunksTest, AJournalOfASearch) {
  const std::string search = EncodeDecisionLog(
      {.format = "switchyard-chunks"}, {.attempt = 1,
                                        .lines = "step=2 world=2 rows=48 from=1 to=8 ns=5 reason=tried why=\n"
                                                 "step=4 world=2 rows=48 from=8 to=1 ns=7 reason=found why=\n"});
  WriteLog(search);
  const std::vector<RankStory> begun = Run(SpecOf("auto"), StoppedAt(5, Attempt(1)));
  EXPECT_THAT(begun[0].warnings, IsEmpty()) << "nothing was trained";
  EXPECT_THAT(Journal(), AnyOf("0:1", "0:2", "0:4", "0:8"));
  WriteLog(search);
  const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(2));
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  ASSERT_THAT(resumed[0].warnings, SizeIs(1));
  EXPECT_THAT(resumed[0].warnings[0],
              HasSubstr("chunks.log does not count: nothing in it was decided by what layers took; into how many"));
  EXPECT_THAT(Journal(), AnyOf("5:1", "5:2", "5:4", "5:8"));
}

// It is decided once more, and not again.
TEST_F(TrainJobChunksTest, AJournalThatWasRemoved) {
  EXPECT_EQ(Run(SpecOf("auto"), StoppedAt(5, Attempt(1)))[0].end.outcome, jobs::TrainOutcome::kStopped);
  std::filesystem::remove(JobPath(kChunkJournalName));
  const std::vector<RankStory> removed = Run(SpecOf("auto"), StoppedAt(7, Attempt(2)));
  EXPECT_EQ(removed[0].end.outcome, jobs::TrainOutcome::kStopped) << removed[0].end.status;
  ASSERT_THAT(removed[0].warnings, SizeIs(1));
  EXPECT_THAT(removed[0].warnings[0], HasSubstr("chunks.log is not there; into how many chunks"));
  EXPECT_THAT(Journal(), AnyOf("5:1", "5:2", "5:4", "5:8"));
  const std::string log = Log();
  const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(3));
  Finishes(resumed);
  EXPECT_EQ(Log(), log);
  EXPECT_THAT(ChunksOf(resumed[0]), Each(removed[0].steps.back().report.chunks));
}

TEST_F(TrainJobChunksTest, AJournalThatIsNoneIsNamed) {
  const std::string good = LogOf(3);
  const std::string other = EncodeDecisionLog({.format = "switchyard-chunks"}, {.attempt = 1, .lines = "step=0\n"});
  const std::pair<std::string, std::string> kLogs[] = {{good.substr(0, good.size() / 2), "chunks.log: damaged"},
                                                       {"", "chunks.log: damaged: it is empty"},
                                                       {other, "chunks.log: chunks: \"step=0\\n\" is no decision"}};
  for (const auto& [log, problem] : kLogs) {
    WriteLog(log);
    ExpectEnd(Run(SpecOf("auto"), Attempt(2)), jobs::TrainOutcome::kFailed, absl::StatusCode::kDataLoss, problem);
  }
}

// Nothing travels.
TEST_F(TrainJobChunksTest, OneRankDecidesNothing) {
  const std::vector<RankStory> stories = Run(SpecOf("auto"), Attempt(1, 1));
  Finishes(stories);
  EXPECT_THAT(ChunksOf(stories[0]), Each(1));
  EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName)));
}

}  // namespace
}  // namespace switchyard::train
