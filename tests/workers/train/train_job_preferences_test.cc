// Jobs with preferences: what their reference says, where it is kept, and that an interrupted job ends with the bits of
// an undisturbed one.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "tests/workers/train/job_fixture.h"
#include "tests/workers/train/token_contents.h"

namespace switchyard::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kComputes[] = "log probabilities of the reference: ", kHas[] = "has all log probabilities";

class TrainJobPreferencesTest : public JobFixture {
 protected:
  TrainJobPreferencesTest() {
    WritePairs("a.bin", 40, 1);
    WritePairs("sub/b.bin", 24, 2);
    WritePairs("held_out.bin", 10, 3);
  }

  // Answers follow a rule, or are drawn.
  void WritePairs(const std::string& name, int pairs, unsigned seed, int most = 6) {
    std::minstd_rand random(seed);
    TokenContents contents;
    contents.documents.clear();
    for (int i = 0; i < pairs; ++i) {
      std::vector<int32_t> prompt;
      for (int t = static_cast<int>(random() % 4); t >= 0; --t) prompt.push_back(static_cast<int32_t>(random() % 24));
      for (const bool chosen : {true, false}) {
        contents.documents.push_back(static_cast<int64_t>(contents.tokens.size()));
        contents.tokens.insert(contents.tokens.end(), prompt.begin(), prompt.end());
        contents.trained.insert(contents.trained.end(), prompt.size(), false);
        for (int t = static_cast<int>(random()) % most; t >= 0; --t) {
          contents.tokens.push_back(chosen ? (contents.tokens.back() * 7 + 3) % 24 : static_cast<int>(random() % 24));
          contents.trained.push_back(true);
        }
      }
    }
    root_.Write("data/" + name, FileOf(contents, 256, /*pairs=*/true));
  }

  jobs::JobSpec Preferring() const {
    jobs::JobSpec spec = Spec();
    spec.document_mask = true;
    spec.packing = jobs::WindowPacking::kBestFit;
    spec.sequence_length = 24;
    spec.dpo = {.beta = 0.2, .label_smoothing = 0.05};
    return spec;
  }
  jobs::JobSpec Adapted() const {
    jobs::JobSpec spec = Preferring();
    spec.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}};
    return spec;
  }
  std::vector<std::string> References() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(JobPath())) {
      if (jobs::IsReferenceFile(entry.path().filename().string())) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::map<std::string, std::string> ReferenceBytes() const {
    std::map<std::string, std::string> bytes;
    for (const std::string& name : References()) bytes[name] = ReadAll(JobPath(name));
    return bytes;
  }
  static bool Computed(const RankStory& story) {
    return std::any_of(story.notes.begin(), story.notes.end(),
                       [](const std::string& note) { return absl::StrContains(note, kHas); });
  }
  static AttemptOptions StopsAt(int64_t step, int world) {
    AttemptOptions options = {.world = world};
    options.on_step = [step](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == step) job->Stop(jobs::StopKind::kSave);
    };
    return options;
  }
};

TEST_F(TrainJobPreferencesTest, LearnsAndReportsItsFigures) {
  jobs::JobSpec spec = Preferring();
  spec.steps = 24;
  spec.evaluate_every_steps = 12;
  spec.evaluation_names = {"held"};
  const std::vector<RankStory> stories = Run(spec, {.world = 2});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  const std::vector<StepProgress>& steps = stories[0].steps;
  ASSERT_EQ(steps.size(), 24u);
  ASSERT_TRUE(steps[0].report.preferences.has_value());
  EXPECT_NEAR(steps[0].report.loss, std::log(2), 1e-6);
  EXPECT_NEAR(steps[0].report.preferences->margin, 0, 1e-6);
  EXPECT_GT(steps[0].report.preferences->pairs, 8);
  EXPECT_LT(steps[23].report.loss, 0.6);
  EXPECT_GT(steps[23].report.preferences->margin, 0.2);
  EXPECT_GT(steps[23].report.preferences->accuracy, 0.7);
  const std::vector<EvaluationSeen>& evaluations = stories[0].evaluations;
  ASSERT_EQ(evaluations.size(), 2u);
  ASSERT_EQ(evaluations[1].sets.size(), 1u);
  ASSERT_TRUE(evaluations[1].sets[0].preferences.has_value());
  EXPECT_EQ(evaluations[1].sets[0].preferences->pairs, 10);
  EXPECT_EQ(evaluations[1].sets[0].loss, evaluations[1].loss);
  EXPECT_GT(evaluations[1].sets[0].preferences->accuracy, 0.5);
  EXPECT_LT(evaluations[1].loss, std::log(2));
  EXPECT_EQ(References().size(), 3u);  // of both files and of evaluation
  EXPECT_THAT(stories[0].notes, Contains(HasSubstr(" from 64 pairs, 0 of them longer and left out; ")));
}

// The first step's loss is that of margins of 0 only if the reference has the model's own bits: on each number of
// ranks.
TEST_F(TrainJobPreferencesTest, ReferencesHaveTheSameBitsOnAnyRanks) {
  std::map<std::string, std::string> first;
  for (const int world : {1, 2, 4}) {
    jobs::JobSpec spec = Preferring();
    spec.micro_batch_sequences = world == 2 ? 4 : 1;
    ASSERT_EQ(Run(spec, {.world = world})[0].end.outcome, jobs::TrainOutcome::kFinished);
    const std::map<std::string, std::string> bytes = ReferenceBytes();
    ForgetJob();
    EXPECT_EQ(bytes.size(), 3u);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << world << " ranks";
  }
}

TEST_F(TrainJobPreferencesTest, AnInterruptedAttemptEndsWithTheSameBits) {
  jobs::JobSpec bf16 = Preferring();
  bf16.dtype = jobs::TrainDType::kBf16;
  jobs::JobSpec frozen = Preferring();
  frozen.parameters = {{.pattern = "*.experts.*", .frozen = true}};
  frozen.recompute = true;
  for (const jobs::JobSpec& spec : {Preferring(), Adapted(), bf16, frozen}) {
    for (const int world : {1, 2}) {
      const std::map<std::string, std::string> whole = Undisturbed(spec, world);
      EXPECT_EQ(Run(spec, StopsAt(6, world))[0].end.outcome, jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> second = Run(spec, {.world = world, .attempt = 2});
      ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
      EXPECT_EQ(second[0].start_step, 6);
      EXPECT_FALSE(Computed(second[0])) << "the reference is read";
      EXPECT_TRUE(FilesOfStep(12) == whole);
      ForgetJob();
    }
  }
}

// A stop while the reference computes is obeyed, and what it has said is kept.
TEST_F(TrainJobPreferencesTest, AStopWhileTheReferenceComputes) {
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
    EXPECT_NE(stories[0].end.outcome, jobs::TrainOutcome::kFailed) << stories[0].end.status;
    EXPECT_NE(stories[0].end.outcome, jobs::TrainOutcome::kFinished);
    if (kind == jobs::StopKind::kSave) {
      EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kStopped);
    }
    EXPECT_THAT(References().size(), testing::Ge(1u));
    const std::vector<RankStory> second = Run(Preferring(), {.world = 2, .attempt = 2});
    ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_TRUE(FilesOfStep(12) == whole);
    ForgetJob();
  }
}

TEST_F(TrainJobPreferencesTest, AMissingOrDamagedFileIsMadeAnew) {
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
    // (The second attempt needs no pair that only earlier steps had.)
    for (const auto& [name, bytes] : ReferenceBytes()) EXPECT_EQ(bytes.size(), before.at(name).size());
    ForgetJob();
  }
}

// Pairs that only later steps have are computed with the base, whatever the model has become; not with another base.
TEST_F(TrainJobPreferencesTest, AForkWithOtherDataHasTheSameReference) {
  ASSERT_EQ(Run(Preferring(), {})[0].end.outcome, jobs::TrainOutcome::kFinished);
  std::filesystem::remove_all(JobPath("step-00000012"));
  std::filesystem::remove(JobPath("LATEST"));
  WritePairs("more.bin", 20, 9);
  jobs::JobSpec spec = Preferring();
  spec.datasets = {"more.bin"};
  spec.dpo.beta = 0.3;
  data_ = {{false, "more.bin"}};
  const jobs::ForkOrigin origin = {.job = "parent", .step = 8, .attempts = 1, .other_data = true};
  const std::string path = root_.path() + "/checkpoints/model/model.safetensors", base = ReadAll(path);
  std::string other = base;
  other.back() = static_cast<char>(other.back() ^ 1);
  root_.Write("checkpoints/model/model.safetensors", other);
  ExpectEnd(Run(spec, {.attempt = 2, .origin = origin}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition, "base_checkpoint: model has other weights than when reference-");
  root_.Write("checkpoints/model/model.safetensors", base);
  const std::vector<RankStory> forked = Run(spec, {.world = 2, .attempt = 3, .origin = origin});
  ASSERT_EQ(forked[0].end.outcome, jobs::TrainOutcome::kFinished) << forked[0].end.status;
  EXPECT_EQ(forked[0].start_step, 8);
  const std::map<std::string, std::string> with = ReferenceBytes();
  EXPECT_EQ(with.size(), 4u);
  ForgetJob();
  // A job of its own with the new data says the same of them.
  ASSERT_EQ(Run(spec, {})[0].end.outcome, jobs::TrainOutcome::kFinished);
  for (const auto& [name, bytes] : ReferenceBytes()) EXPECT_TRUE(with.count(name) == 1) << name;
}

TEST_F(TrainJobPreferencesTest, ALongJobAndAShortOneSayTheSame) {
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

TEST_F(TrainJobPreferencesTest, ModesAndWeightsOfDatasets) {
  jobs::JobSpec spec = Preferring();
  spec.dataset_weights = {3, 1};
  const std::map<std::string, std::string> whole = Undisturbed(spec, 2);
  for (const jobs::CommMode mode : {jobs::CommMode::kFair, jobs::CommMode::kPartition}) {
    spec.communication.mode = mode;
    EXPECT_TRUE(Undisturbed(spec, 2) == whole);
  }
  spec.communication.mode = jobs::CommMode::kPreempt;
  spec.restore.hidden = pipeline::HiddenRestore::kRecompute;
  EXPECT_TRUE(Undisturbed(spec, 2) == whole);
  for (const jobs::CommMode mode : {jobs::CommMode::kPipelining, jobs::CommMode::kFull}) {  // these have other bits
    spec.communication.mode = mode;
    EXPECT_EQ(Run(spec, {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
    ForgetJob();
  }
}

TEST_F(TrainJobPreferencesTest, LongPairsAreLeftOut) {
  jobs::JobSpec spec = Preferring();
  spec.sequence_length = 8;
  spec.evaluation.clear();
  evaluation_.clear();
  const std::vector<RankStory> some = Run(spec, {});
  ASSERT_EQ(some[0].end.outcome, jobs::TrainOutcome::kFinished) << some[0].end.status;
  EXPECT_THAT(some[0].notes, Contains(AllOf(HasSubstr(" from 64 pairs, "), Not(HasSubstr(", 0 of them longer")))));
  ForgetJob();
  spec.sequence_length = 1;
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: data: none of 64 pairs of answers in 2 files fits into sequence_length 1");
}

TEST_F(TrainJobPreferencesTest, PairsAndJobsFit) {
  jobs::JobSpec spec = Preferring();
  spec.dpo = {};
  ExpectEnd(Run(spec, {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: a.bin: has pairs of answers, which only a job with dpo trains on");
  spec.packing = jobs::WindowPacking::kConcatenate;
  ExpectEnd(Run(spec, {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "a.bin has pairs of answers, which go with packing best_fit alone");
  WriteTokens("sub/b.bin", 0, 300);
  ExpectEnd(Run(Preferring(), {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "a.bin has pairs of answers, sub/b.bin has none; all files or none may");
  WriteTokens("a.bin", 0, 300);
  ExpectEnd(Run(Preferring(), {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: a.bin: has no pairs of answers, which a job with dpo wants");
}

TEST_F(TrainJobPreferencesTest, AnEvaluationThatIsTheBestIsKept) {
  jobs::JobSpec spec = Preferring();
  spec.evaluate_every_steps = 2;
  spec.checkpoints.keep_best = true;
  spec.early_stop = {.patience = 2, .min_improvement = 10};
  const std::vector<RankStory> stories = Run(spec, {});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_THAT(stories[0].end.note, HasSubstr("stopped early at step 6"));
}

}  // namespace
}  // namespace switchyard::train
