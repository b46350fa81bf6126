// A job that begins from another job's checkpoint: its manifest is checked before anything is trained.
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/tensor/yield_point.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kStep[] = "step-00000012";

class TrainJobBaseTest : public JobFixture {
 protected:
  // Another job has left its checkpoints of steps 8 and 12.
  TrainJobBaseTest() {
    EXPECT_EQ(Run(Spec(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
    std::filesystem::rename(JobPath(), FirstPath());
  }

  std::string FirstPath(const std::string& name = "") const { return root_.path() + "/checkpoints/first/" + name; }
  std::string PathOf(const std::string& file) const { return FirstPath(absl::StrCat(kStep, "/", file)); }
  jobs::JobSpec From(const std::string& base) const {
    jobs::JobSpec spec = Spec();
    spec.base_checkpoint = base;
    return spec;
  }

  std::map<std::string, std::string> FilesOfFirst() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(FirstPath())) {
      if (entry.is_regular_file()) files[entry.path()] = ReadAll(entry.path());
    }
    return files;
  }

  // Expects this error after `harm` was done to its base, and restores all; returns the message.
  std::string Refused(const std::function<void()>& harm, absl::StatusCode code, const std::string& message,
                      const std::string& base = absl::StrCat("first/", kStep)) {
    SCOPED_TRACE(message);
    harm();
    const auto before = FilesOfFirst();
    const std::vector<RankStory> stories = Run(From(base), {.world = 2});
    ExpectEnd(stories, jobs::TrainOutcome::kFailed, code, message);
    EXPECT_FALSE(stories[0].started);
    EXPECT_TRUE(Steps().empty());
    EXPECT_TRUE(FilesOfFirst() == before);
    return std::string(stories[0].end.status.message());
  }

  void Flip(const std::string& path, size_t from_end = 1) {
    std::string bytes = ReadAll(path);
    ASSERT_GE(bytes.size(), from_end) << path;
    char& byte = bytes[bytes.size() - from_end];
    byte = static_cast<char>(byte ^ 1);
    root_.Write(path.substr(root_.path().size() + 1), bytes);
  }
};

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

TEST_F(TrainJobBaseTest, OneThatIsWholeIsTrainedOn) {
  jobs::JobSpec spec = From(absl::StrCat("first/", kStep));
  const std::vector<RankStory> stories = Run(spec, {.world = 2, .note_interval = absl::ZeroDuration()});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_THAT(stories[0].notes, testing::Contains(HasSubstr("checks first/step-00000012: ")));
  EXPECT_THAT(stories[0].notes, testing::Contains("begins from first/step-00000012"));
  EXPECT_THAT(stories[0].notes, Not(testing::Contains("begins anew")));
  ForgetJob();
  // Masters and moments are not read; a copy may have any name.
  std::filesystem::rename(FirstPath(kStep), root_.path() + "/checkpoints/weights");
  std::filesystem::remove(root_.path() + "/checkpoints/weights/optimizer-rank00001.safetensors");
  Flip(root_.path() + "/checkpoints/weights/optimizer-rank00000.safetensors");
  EXPECT_EQ(Run(From("weights"), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
}

TEST_F(TrainJobBaseTest, AFlippedByteOfItsWeightsIsNamedAndAnOlderOne) {
  const auto flip = [&] { Flip(PathOf("model-00002-of-00002.safetensors")); };
  const std::string said =
      Refused(flip, kDataLoss, "rank 0: first/step-00000012: model-00002-of-00002.safetensors: damaged at bytes [0, ");
  EXPECT_THAT(said, HasSubstr("CRC-32C "));
  EXPECT_THAT(said, HasSubstr(", the manifest says "));
  EXPECT_THAT(said, HasSubstr("; step-00000008 of the same job is complete"));
  const auto cut_older = [&] { std::filesystem::resize_file(FirstPath("step-00000008/config.json"), 10); };
  EXPECT_THAT(Refused(cut_older, kDataLoss, "damaged at bytes"), Not(HasSubstr("is complete")));
}

TEST_F(TrainJobBaseTest, WhatElseIsNotWhatItsManifestSays) {
  const std::string config = ReadAll(PathOf("config.json")), shard = "model-00001-of-00002.safetensors";
  const auto bytes = std::filesystem::file_size(PathOf(shard));
  Refused([&] { root_.Write(absl::StrCat("checkpoints/first/", kStep, "/config.json"), config + " "); }, kDataLoss,
          absl::StrCat("config.json: ", config.size() + 1, " bytes, the manifest says ", config.size()));
  root_.Write(absl::StrCat("checkpoints/first/", kStep, "/config.json"), config);
  Refused([&] { std::filesystem::copy_file(PathOf(shard), PathOf("model.safetensors")); }, kDataLoss,
          "model.safetensors: is there, the manifest does not name it");
  std::filesystem::remove(PathOf("model.safetensors"));
  Refused([&] { std::filesystem::resize_file(PathOf(shard), bytes - 1); }, kDataLoss,
          absl::StrCat(shard, ": ", bytes - 1, " bytes, the manifest says ", bytes));
  Refused([&] { std::filesystem::remove(PathOf(shard)); }, kDataLoss,
          absl::StrCat(shard, ": is not there, the manifest says ", bytes, " bytes"));
  Refused([&] { Flip(PathOf(checkpoint::kManifestName), 100); }, kDataLoss,
          "first/step-00000012: MANIFEST.json: damaged");
  Refused([&] { std::filesystem::resize_file(PathOf(checkpoint::kManifestName), 0); }, kDataLoss,
          "MANIFEST.json: damaged");
}

TEST_F(TrainJobBaseTest, AFolderOfAnUnfinishedSaveIsRefused) {
  for (const std::string unfinished : {"step-00000012.tmp-7", "step-00000012.tmp-old-7"}) {
    std::filesystem::rename(FirstPath(kStep), FirstPath(unfinished));
    Refused([] {}, absl::StatusCode::kInvalidArgument,
            absl::StrCat("base_checkpoint: first/", unfinished, ": ", unfinished, " is of a save that is not finished"),
            absl::StrCat("first/", unfinished));
    std::filesystem::rename(FirstPath(unfinished), FirstPath(kStep));
  }
}

// Behind a gate, as on a worker that also serves: it stops between two pieces.
TEST_F(TrainJobBaseTest, WhatIsCheckedMakesWay) {
  YieldPoint gate;
  gate.OpenFor(absl::Hours(1));
  std::atomic<int> checked = 0;
  AttemptOptions options = {.gate = [&](int) { return &gate; }, .note_interval = absl::ZeroDuration()};
  options.on_note = [&](TrainJob*, const std::string& text) {
    if (absl::StartsWith(text, "checks first/") && ++checked == 1) gate.Shut();
  };
  std::vector<RankStory> stories;
  std::thread runner([&] { stories = Run(From(absl::StrCat("first/", kStep)), options); });
  gate.AwaitStanding(1);
  EXPECT_EQ(checked, 1);
  gate.OpenFor(absl::Hours(1));
  runner.join();
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_GT(checked, 1);
}

// Nothing says what its files should be.
TEST_F(TrainJobBaseTest, AManifestOfSomebodyElseSaysNothing) {
  root_.Write("checkpoints/model/MANIFEST.json", R"({"files":[{"name":"model.safetensors","bytes":1}]})");
  EXPECT_EQ(Run(Spec(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
}

}  // namespace
}  // namespace switchyard::train
