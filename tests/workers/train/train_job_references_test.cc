// Log probabilities of a job's reference: where they are kept, that they are of the base that the job began with, and
// what happens to files that are damaged, of other data, newer or half written.
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/becomes.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/preference_jobs.h"

namespace switchyard::train {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr char kLooks[] = "looks for log probabilities of the reference that are missing: ";

class TrainJobReferencesTest : public PreferenceJobs {
 protected:
  // Ends after the step with a checkpoint of it, and its folder looks like that of a fork.
  void RunParent(int64_t step) {
    ASSERT_EQ(Run(Preferring(), {})[0].end.outcome, jobs::TrainOutcome::kFinished);
    for (const std::string& name : Steps()) {
      if (name != jobs::StepFolder(step)) std::filesystem::remove_all(JobPath(name));
    }
    std::filesystem::remove(JobPath("LATEST"));
  }
  // Fails the write of a reference file that is number `at`, from 0; counts writes by name.
  AttemptOptions FailsAtWrite(int at, std::map<std::string, int>* writes) {
    AttemptOptions options = {.world = 1};
    options.reference_interval = absl::ZeroDuration();
    options.note_interval = absl::ZeroDuration();
    options.wrap_files = [writes, at](std::unique_ptr<checkpoint::FileSystem> files,
                                      int) -> std::unique_ptr<checkpoint::FileSystem> {
      return std::make_unique<HookedFileSystem>(std::move(files), [writes, at](const std::string& path) {
        if (!absl::StartsWith(path, "reference-")) return absl::OkStatus();
        int all = 0;
        for (const auto& [name, count] : *writes) all += count;
        ++(*writes)[path.substr(0, jobs::ReferenceFile(0).size())];
        return all == at ? absl::UnavailableError("the disk is gone") : absl::OkStatus();
      });
    };
    return options;
  }
  static int CountOf(const std::vector<std::string>& notes, const std::string& begin) {
    int count = 0;
    for (const std::string& note : notes) count += absl::StartsWith(note, begin) ? 1 : 0;
    return count;
  }
};

// The first step's loss is that of margins of 0 only if the reference has the model's own bits: on each number of
// ranks, with dense state on all of them (0) or sharded (1).
TEST_F(TrainJobReferencesTest, ReferencesHaveTheSameBitsOnAnyRanks) {
  std::map<std::string, std::string> first;
  for (const auto& [world, zero] :
       {std::pair(1, 0), std::pair(2, 0), std::pair(2, 1), std::pair(4, 0), std::pair(4, 1)}) {
    jobs::JobSpec spec = Preferring();
    spec.zero = zero;
    spec.micro_batch_sequences = world == 2 ? 4 : 1;
    const std::vector<RankStory> stories = Run(spec, {.world = world});
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_NEAR(stories[0].steps[0].report.preferences->margin, 0, 1e-6);
    const std::map<std::string, std::string> bytes = ReferenceBytes();
    ForgetJob();
    EXPECT_EQ(bytes.size(), 3u);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << world << " ranks, zero " << zero;
  }
}

// A stop while the reference computes is obeyed at once, and what is computed is kept.
TEST_F(TrainJobReferencesTest, AStopWhileTheReferenceComputes) {
  const std::map<std::string, std::string> whole = Undisturbed(Preferring(), 2);
  for (const jobs::StopKind kind : {jobs::StopKind::kSave, jobs::StopKind::kNow}) {
    AttemptOptions first = {.world = 2};
    first.note_interval = absl::ZeroDuration();
    int seen = 0;
    first.on_note = [&](TrainJob* job, const std::string& text) {
      if (absl::StrContains(text, kComputes) && ++seen == 2) job->Stop(kind);
    };
    const std::vector<RankStory> stories = Run(Preferring(), first);
    EXPECT_TRUE(stories[0].steps.empty());
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kStopped) << stories[0].end.status;
    EXPECT_THAT(stories[0].notes, Not(Contains("begins from model"))) << "it loads no weights to train";
    EXPECT_THAT(References().size(), testing::Ge(1u));
    const std::vector<RankStory> second = Run(Preferring(), {.world = 2, .attempt = 2});
    ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_TRUE(FilesOfStep(12) == whole);
    ForgetJob();
  }
}

TEST_F(TrainJobReferencesTest, AMissingOrDamagedFileIsMadeAnew) {
  const std::map<std::string, std::string> whole = Undisturbed(Preferring(), 1);
  for (const bool damaged : {false, true}) {
    EXPECT_EQ(Run(Preferring(), StopsAt(6, 1))[0].end.outcome, jobs::TrainOutcome::kStopped);
    const std::map<std::string, std::string> before = ReferenceBytes();
    for (const std::string& name : References()) {
      if (damaged) {
        root_.Write("checkpoints/job/" + name, ReadAll(JobPath(name)).substr(0, 99));
      } else {
        std::filesystem::remove(JobPath(name));
      }
    }
    const std::vector<RankStory> second = Run(Preferring(), {.attempt = 2});
    ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_TRUE(Computed(second[0]));
    EXPECT_EQ(second[0].warnings.size(), damaged ? 3u : 0u);
    if (damaged) {
      EXPECT_THAT(second[0].warnings[0], HasSubstr("log probabilities of the reference are computed anew"));
    }
    EXPECT_TRUE(FilesOfStep(12) == whole);
    // (The second attempt wants no pair that only earlier steps had.)
    for (const auto& [name, bytes] : ReferenceBytes()) EXPECT_EQ(bytes.size(), before.at(name).size());
    ForgetJob();
  }
}

TEST_F(TrainJobReferencesTest, ALongJobAndAShortOneHaveTheSameReference) {
  jobs::JobSpec spec = Preferring();
  spec.optimizer.schedule.warmup_steps = 1;
  spec.steps = 2;  // not all windows
  const std::vector<RankStory> first = Run(spec, {});
  ASSERT_EQ(first[0].end.outcome, jobs::TrainOutcome::kFinished) << first[0].end.status;
  const std::map<std::string, std::string> some = ReferenceBytes();
  ForgetJob();
  spec.steps = 40;
  ASSERT_EQ(Run(spec, {})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const std::map<std::string, std::string> all = ReferenceBytes();
  bool fewer = false;
  for (const auto& [name, bytes] : some) {
    ASSERT_EQ(bytes.size(), all.at(name).size());
    for (size_t at = 96; at + 16 < bytes.size(); at += 16) {
      const bool same = bytes.substr(at, 16) == all.at(name).substr(at, 16);
      fewer = fewer || !same;
      EXPECT_TRUE(same || bytes.substr(at + 6, 2) == std::string("\xf8\x7f")) << name;
    }
  }
  EXPECT_TRUE(fewer);
}

// Pairs that only a fork has are computed with the parent's base, whatever the model has become; not with another base.
TEST_F(TrainJobReferencesTest, AForkWithOtherDataHasTheSameReference) {
  RunParent(8);
  WritePairs("more.bin", 20, 9);
  data_ = {{false, "more.bin"}};
  evaluation_ = {};  // so none of the parent's files of the reference is the fork's
  jobs::JobSpec spec = Preferring();
  spec.dpo.beta = 0.3;
  const jobs::ForkOrigin origin = {.job = "parent", .step = 8, .attempts = 1, .other_data = true};
  FlipABit();
  ExpectEnd(Run(spec, {.attempt = 2, .origin = origin}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition, "base_weights: was ");
  FlipABit();
  const std::vector<RankStory> forked = Run(spec, {.world = 2, .attempt = 3, .origin = origin});
  ASSERT_EQ(forked[0].end.outcome, jobs::TrainOutcome::kFinished) << forked[0].end.status;
  EXPECT_EQ(forked[0].start_step, 8);
  const std::map<std::string, std::string> with = ReferenceBytes();
  EXPECT_EQ(with.size(), 4u);
  ForgetJob();
  // A job of its own with the new data has the same values.
  ASSERT_EQ(Run(spec, {})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const std::map<std::string, std::string> own = ReferenceBytes();
  ASSERT_EQ(own.size(), 1u);
  ASSERT_TRUE(with.contains(own.begin()->first));
  EXPECT_TRUE(with.at(own.begin()->first) == own.begin()->second);
}

// Also if its files of the reference are gone.
TEST_F(TrainJobReferencesTest, AJobGoesOnWithItsBaseAlone) {
  Run(Preferring(), StopsAt(6, 1));
  for (const std::string& name : References()) std::filesystem::remove(JobPath(name));
  FlipABit();
  ExpectEnd(Run(Preferring(), {.attempt = 2}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "base_weights: was ");
}

// Before the first checkpoint a job begins with the base as it is, and so does its reference.
TEST_F(TrainJobReferencesTest, AFileOfAnotherBaseIsMadeAnew) {
  AttemptOptions first;
  first.note_interval = absl::ZeroDuration();
  first.on_note = [](TrainJob* job, const std::string& text) {
    if (absl::StrContains(text, kHas)) job->Stop(jobs::StopKind::kNow);
  };
  EXPECT_TRUE(Run(Preferring(), first)[0].steps.empty());
  EXPECT_EQ(References().size(), 3u);
  FlipABit();
  const std::vector<RankStory> second = Run(Preferring(), {.attempt = 2});
  ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
  EXPECT_EQ(second[0].warnings.size(), 3u);
  EXPECT_THAT(second[0].warnings, Contains(HasSubstr(": is of other weights than those that model has now; ")));
  const std::map<std::string, std::string> files = FilesOfStep(12);
  ForgetJob();
  EXPECT_TRUE(files == Undisturbed(Preferring(), 1));
}

TEST_F(TrainJobReferencesTest, ANewerProgramsFileStays) {
  Run(Preferring(), StopsAt(6, 1));
  const std::string name = References()[0];
  std::string newer = ReadAll(JobPath(name));
  newer[8] = 2;
  newer += "and something more";
  root_.Write("checkpoints/job/" + name, newer);
  ExpectEnd(Run(Preferring(), {.world = 2, .attempt = 2}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition,
            absl::StrCat(name, ": file of the reference: version 2, this program reads 1; let a newer program go on"));
  EXPECT_TRUE(ReadAll(JobPath(name)) == newer);
}

// Files whose contents have the same FNV-1a, 64 bits, which is no defence against those who make them so: the mask of
// the second was found by reduction of the lattice of the hash's multiples.
TEST_F(TrainJobReferencesTest, TwoFilesOfOneHashAreRefused) {
  TokenContents first, second;
  for (int i = 0; i < 192; ++i) first.tokens.push_back(i * 5 % 24);
  second.tokens = first.tokens;
  first.trained.assign(192, true);
  first.documents = {0, 48, 96, 144};
  second.documents = {0, 32, 64, 96, 128, 160};
  for (const int byte : {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x76, 0x10, 0x17, 0x1f,
                         0x1d, 0x7c, 0x03, 0x09, 0x07, 0x70, 0x78, 0x1d, 0x39, 0x04, 0x02, 0x1a}) {
    for (int bit = 0; bit < 8; ++bit) second.trained.push_back(((byte >> bit) & 1) != 0);
  }
  const std::string one = FileOf(first, 256, /*pairs=*/true), other = FileOf(second, 256, /*pairs=*/true);
  ASSERT_EQ(one.substr(56, 8), other.substr(56, 8));
  root_.Write("data/one.bin", one);
  root_.Write("data/other.bin", other);
  for (const bool evaluated : {false, true}) {
    data_ = {{false, "one.bin"}};
    evaluation_ = {};
    (evaluated ? evaluation_ : data_).push_back({false, "other.bin"});
    jobs::JobSpec spec = Preferring();
    spec.sequence_length = 96;
    ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
              absl::StrCat(evaluated ? "evaluation" : "datasets",
                           ": other.bin and one.bin have one hash of their contents, e4325b2bd2c7ff6d, but 3 and 2 "
                           "pairs of answers in 192 and 192 tokens"));
    ForgetJob();
  }
}

// A file is written where it has new values alone, and what was written is not computed again.
TEST_F(TrainJobReferencesTest, AnAttemptThatIsLostGoesOnBetweenPieces) {
  const std::map<std::string, std::string> whole = Undisturbed(Preferring(), 1);
  std::map<std::string, int> writes;
  const std::vector<RankStory> lost = Run(Preferring(), FailsAtWrite(5, &writes));
  EXPECT_EQ(lost[0].end.outcome, jobs::TrainOutcome::kLost) << lost[0].end.status;
  const int before = CountOf(lost[0].notes, kComputes);
  EXPECT_GE(before, 5);
  writes.clear();
  AttemptOptions options = FailsAtWrite(-1, &writes);
  options.attempt = 2;
  const std::vector<RankStory> second = Run(Preferring(), options);
  ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
  EXPECT_TRUE(FilesOfStep(12) == whole);
  const std::map<std::string, std::string> bytes = ReferenceBytes();
  int written = 0;
  for (const auto& [name, count] : writes) written += count;
  const int pieces = CountOf(second[0].notes, kComputes);
  EXPECT_GT(pieces, 5);
  // A piece of two windows has values of one file, or of two.
  EXPECT_LT(written, pieces + pieces / 2);
  // All at once, and over two ranks, they are the same values; five pieces more.
  ForgetJob();
  AttemptOptions once = {.world = 1};
  once.note_interval = absl::ZeroDuration();
  const std::vector<RankStory> all = Run(Preferring(), once);
  EXPECT_TRUE(ReferenceBytes() == bytes);
  EXPECT_EQ(CountOf(all[0].notes, kComputes), pieces + 5);
  writes.clear();
  ForgetJob();
  AttemptOptions both = FailsAtWrite(-1, &writes);
  both.world = 2;
  ASSERT_EQ(Run(Preferring(), both)[0].end.outcome, jobs::TrainOutcome::kFinished);
  EXPECT_TRUE(ReferenceBytes() == bytes);
}

TEST_F(TrainJobReferencesTest, ANumberThatIsNotFiniteIsNamed) {
  const std::string path = "checkpoints/model/model.safetensors";
  std::string bytes = ReadAll(root_.path() + "/" + path);
  // Weights of the final norm that are finite, but not what they are multiplied to.
  for (size_t i = 1; i <= 48; ++i) bytes.replace(bytes.size() - 4 * i + 2, 2, "\x7f\x7f");
  root_.Write(path, bytes);
  ExpectEnd(Run(Preferring(), {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kDataLoss,
            "a.bin: log probabilities of the reference are not finite: ");
}

// Of more pairs than a message has.
TEST_F(TrainJobReferencesTest, ManyPairsAreSentInParts) {
  WritePairs("big.bin", 140'000, 4);
  data_ = {{false, "big.bin"}};
  evaluation_ = {};
  jobs::JobSpec spec = Preferring();
  spec.steps = 4;
  spec.checkpoints.every_steps = 1;
  spec.optimizer.schedule.warmup_steps = 1;
  const std::vector<RankStory> first = Run(spec, {.world = 2});
  ASSERT_EQ(first[0].end.outcome, jobs::TrainOutcome::kFinished) << first[0].end.status;
  const std::map<std::string, std::string> files = FilesOfStep(4), bytes = ReferenceBytes();
  ASSERT_EQ(bytes.size(), 1u);
  int late = 0;  // values behind the first part
  const std::string& values = bytes.begin()->second;
  for (size_t at = 96 + 16 * 70'000; at + 16 < values.size(); at += 16) {
    late += values.substr(at + 6, 2) != std::string("\xf8\x7f") ? 1 : 0;
  }
  EXPECT_GT(late, 4);
  for (const std::string& name : Steps()) std::filesystem::remove_all(JobPath(name));
  std::filesystem::remove(JobPath("LATEST"));
  const std::vector<RankStory> second = Run(spec, {.world = 2, .attempt = 2});
  ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
  EXPECT_FALSE(Computed(second[0])) << "they are read";
  EXPECT_TRUE(FilesOfStep(4) == files);
}

// While it looks for what is missing, too, a job makes way for serving, and stops.
TEST_F(TrainJobReferencesTest, LookingForWhatIsMissingStops) {
  WritePairs("big.bin", 5000, 4);
  data_ = {{false, "big.bin"}};
  evaluation_ = {};
  AttemptOptions options;
  options.note_interval = absl::ZeroDuration();
  for (const jobs::StopKind kind : {jobs::StopKind::kSave, jobs::StopKind::kNow}) {
    options.on_note = [kind](TrainJob* job, const std::string& text) {
      if (absl::StartsWith(text, kLooks)) job->Stop(kind);
    };
    const std::vector<RankStory> stopped = Run(Preferring(), options);
    EXPECT_EQ(stopped[0].end.outcome, jobs::TrainOutcome::kStopped) << stopped[0].end.status;
    EXPECT_EQ(CountOf(stopped[0].notes, kLooks), 1 + 1) << "of samples, and of windows";
    EXPECT_EQ(CountOf(stopped[0].notes, kComputes), 0);
    ForgetJob();
  }
  YieldPoint gate;
  gate.OpenFor(absl::Hours(1));
  std::atomic<int> looks{0};
  options.gate = [&](int) { return &gate; };
  options.on_note = [&](TrainJob*, const std::string& text) {
    if (absl::StartsWith(text, absl::StrCat(kLooks, "0 ")) && absl::StrContains(text, "windows")) gate.Shut();
    if (absl::StartsWith(text, kLooks)) ++looks;
  };
  std::vector<RankStory> stories;
  std::thread runner([&] { stories = Run(Preferring(), options); });
  EXPECT_TRUE(Becomes([&] { return looks >= 2; }));
  gate.AwaitStanding(1);
  const int seen = looks;
  EXPECT_EQ(seen, 2) << "it stands before the next windows";
  gate.OpenFor(absl::Hours(1));
  runner.join();
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_GT(looks, 4);
}

}  // namespace
}  // namespace switchyard::train
