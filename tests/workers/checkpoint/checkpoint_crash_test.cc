// A crash or an error at every call that changes the disk, in every state that a crash may leave.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/checkpoint_fixture.h"
#include "tests/workers/checkpoint/simulated_file_system.h"

namespace switchyard::checkpoint {
namespace {

struct Aftermath {
  CrashState state;
  uint64_t seed = 0;
};

std::vector<Aftermath> Aftermaths() {
  std::vector<Aftermath> all = {{CrashState::kNothing},
                                {CrashState::kEverything},
                                {CrashState::kEmptyFiles},
                                {CrashState::kHalfFiles},
                                {CrashState::kContentsNoNames}};
  for (uint64_t seed = 0; seed < 20; ++seed) all.push_back({CrashState::kRandom, seed});
  return all;
}

// After a crash without other faults every folder with a step's name is whole, old ones too.
void ExpectAllWhole(SimulatedFileSystem* files) {
  const std::vector<FolderEntry> entries = *files->List("");
  for (const FolderEntry& entry : entries) {
    if (StepOfFolder(entry.name) < 0) continue;
    const absl::StatusOr<Manifest> manifest = OpenCheckpoint(files, entry.name);
    ASSERT_EQ(manifest.status(), absl::OkStatus());
    for (const FileRecord& record : manifest->files) {
      const std::string path = entry.name + "/" + record.name;
      EXPECT_EQ(CheckSums(**files->Open(path, OpenMode::kRead), path, record.sums), absl::OkStatus());
    }
  }
}

// What must hold of any disk on which `acknowledged` (-1: none) was committed last: that or a later step is there and
// whole, nothing better is damaged, and the next attempt can save.
void ExpectGoesOn(SimulatedFileSystem* files, int64_t acknowledged) {
  const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(files);
  if (found.ok()) {
    EXPECT_GE(found->manifest.step, acknowledged);
    EXPECT_TRUE(HoldsItsStep(files, *found));
    EXPECT_TRUE(found->rejected.empty()) << found->rejected.front();
  } else {
    EXPECT_EQ(acknowledged, -1);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound) << found.status();
  }
  ASSERT_EQ(SaveSteps(files, {.attempt = 9, .resumed_from = found.ok() ? found->folder : ""}, {8}), absl::OkStatus());
  const absl::StatusOr<FoundCheckpoint> next = FindCheckpoint(files);
  ASSERT_EQ(next.status(), absl::OkStatus());
  EXPECT_EQ(next->manifest.step, 8);
  EXPECT_TRUE(HoldsItsStep(files, *next));
  const std::vector<FolderEntry> entries = *files->List("");
  for (const FolderEntry& entry : entries) EXPECT_FALSE(absl::StrContains(entry.name, ".tmp-")) << entry.name;
}

// Attempt 2 continues from `from` and saves the steps that it can; returns the last step that was acknowledged.
int64_t SaveWhatItCan(SimulatedFileSystem* files, const std::string& from, const std::vector<int64_t>& steps) {
  int64_t acknowledged = from.empty() ? -1 : StepOfFolder(from);
  const auto writer = CheckpointWriter::Open(files, {.attempt = 2, .resumed_from = from, .keep_last = 1});
  if (!writer.ok()) return acknowledged;
  for (const int64_t step : steps) {
    if (SaveStep(files, writer->get(), step).ok()) acknowledged = step;
  }
  return acknowledged;
}

// Crashes at each call of saving `steps` on a disk as `begin` makes it.
void CrashEverywhere(const SimulatedFileSystem& begin, const std::string& from, const std::vector<int64_t>& steps) {
  const auto whole = begin.Restart(CrashState::kNothing);
  ASSERT_EQ(SaveWhatItCan(whole.get(), from, steps), steps.back());
  ASSERT_GT(whole->calls(), 30);
  for (int64_t at = 1; at <= whole->calls() + 1; ++at) {
    const auto files = begin.Restart(CrashState::kNothing);
    files->CrashAt(at);
    const int64_t acknowledged = SaveWhatItCan(files.get(), from, steps);
    EXPECT_EQ(files->crashed(), at <= whole->calls());
    for (const Aftermath& aftermath : Aftermaths()) {
      SCOPED_TRACE(testing::Message() << "call " << at << " state " << static_cast<int>(aftermath.state) << " seed "
                                      << aftermath.seed << " acknowledged " << acknowledged);
      const auto after = files->Restart(aftermath.state, aftermath.seed);
      ExpectAllWhole(after.get());
      ExpectGoesOn(after.get(), acknowledged);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(CheckpointCrashTest, FirstSave) { CrashEverywhere(SimulatedFileSystem(), "", {1}); }

TEST(CheckpointCrashTest, SavesThatRemoveOldOnes) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {1, 2}), absl::OkStatus());
  CrashEverywhere(files, StepFolder(2), {3, 4});
}

// LATEST's checkpoint was damaged: training continues from step 1, and step 2 replaces the damaged one.
TEST(CheckpointCrashTest, SaveInThePlaceOfADamagedOne) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {1, 2}), absl::OkStatus());
  const auto whole = files.Restart(CrashState::kNothing);
  ASSERT_EQ(SaveWhatItCan(whole.get(), StepFolder(1), {2}), 2);
  for (int64_t at = 1; at <= whole->calls(); ++at) {
    const auto crashed = files.Restart(CrashState::kNothing);
    crashed->CrashAt(at);
    const int64_t acknowledged = SaveWhatItCan(crashed.get(), StepFolder(1), {2});
    for (const Aftermath& aftermath : Aftermaths()) {
      SCOPED_TRACE(testing::Message() << "call " << at << " state " << static_cast<int>(aftermath.state));
      const auto after = crashed->Restart(aftermath.state, aftermath.seed);
      ExpectAllWhole(after.get());
      ExpectGoesOn(after.get(), acknowledged);
    }
  }
}

// One call fails, the program lives: what was committed stays, the next step is saved by the same writer, and what a
// failed sync lost is in no checkpoint.
void FailEverywhere(absl::StatusCode code) {
  SimulatedFileSystem begin;
  ASSERT_EQ(SaveSteps(&begin, {.attempt = 1}, {1, 2}), absl::OkStatus());
  const auto whole = begin.Restart(CrashState::kNothing);
  ASSERT_EQ(SaveWhatItCan(whole.get(), StepFolder(2), {3}), 3);
  int failed = 0;
  for (int64_t at = 1; at <= whole->calls(); ++at) {
    SCOPED_TRACE(testing::Message() << "call " << at);
    const auto files = begin.Restart(CrashState::kNothing);
    files->FailAt(at, code);
    const int64_t acknowledged = SaveWhatItCan(files.get(), StepFolder(2), {3});
    if (acknowledged == 2) ++failed;
    const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(files.get());
    ASSERT_EQ(found.status(), absl::OkStatus());
    EXPECT_GE(found->manifest.step, acknowledged);
    for (const Aftermath& aftermath : Aftermaths()) {
      ExpectGoesOn(files->Restart(aftermath.state, aftermath.seed).get(), acknowledged);
    }
    const auto again = begin.Restart(CrashState::kNothing);
    again->FailAt(at, code);
    const int64_t last = SaveWhatItCan(again.get(), StepFolder(2), {3, 4});
    if (again->calls() < whole->calls() / 2) continue;  // no writer could be opened
    EXPECT_EQ(last, 4);
    for (const Aftermath& aftermath : Aftermaths()) {
      ExpectGoesOn(again->Restart(aftermath.state, aftermath.seed).get(), 4);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failed, 15);
}

TEST(CheckpointCrashTest, DiskErrorAtEveryCall) { FailEverywhere(absl::StatusCode::kDataLoss); }
TEST(CheckpointCrashTest, DiskFullAtEveryCall) { FailEverywhere(absl::StatusCode::kResourceExhausted); }

}  // namespace
}  // namespace switchyard::checkpoint
