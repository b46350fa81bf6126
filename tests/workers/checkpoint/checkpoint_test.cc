// Saving, finding, damage, retention, fencing: on the simulated disk, and the plain way on a real one.
#include "workers/checkpoint/tensors/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/checkpoint_fixture.h"
#include "tests/workers/checkpoint/simulated_file_system.h"
#include "workers/checkpoint/files/posix_file_system.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/safetensors/shard_table.h"

namespace switchyard::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> StepsOf(FileSystem* files) {
  const std::vector<FolderEntry> entries = *files->List("");
  std::vector<std::string> names;
  for (const FolderEntry& entry : entries) {
    if (entry.is_folder) names.push_back(entry.name);
  }
  return names;
}

TEST(CheckpointTest, EveryFlippedBitIsFoundAndNamed) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {1, 2}), absl::OkStatus());
  std::vector<std::string> paths = {"LATEST"};
  const std::vector<FolderEntry> entries = *files.List("step-00000002");
  for (const FolderEntry& entry : entries) paths.push_back("step-00000002/" + entry.name);
  ASSERT_EQ(paths.size(), 8u);
  for (const std::string& path : paths) {
    std::string& bytes = *files.Contents(path);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(&files);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_EQ(found.status(), absl::OkStatus()) << path << " bit " << bit;
      ASSERT_EQ(found->manifest.step, path == "LATEST" ? 2 : 1) << path << " bit " << bit;
      ASSERT_EQ(found->rejected.size(), 1u);
      ASSERT_THAT(found->rejected[0], HasSubstr(path + ": damaged"));
    }
  }
}

TEST(CheckpointTest, DamageIsPlacedInItsBlock) {
  SimulatedFileSystem files;
  ASSERT_EQ(files.MakeFolder("a"), absl::OkStatus());
  const std::string text(5 * kSummedBlockBytes / 2, 'x');
  const auto records = WriteFiles(&files, "a", {{"big.txt", {}, text}});
  ASSERT_EQ(records.status(), absl::OkStatus());
  EXPECT_EQ((*records)[0].sums.sha256, Sha256Hex(text));
  EXPECT_EQ((*records)[0].sums.crc32c.size(), 3u);
  const auto check = [&] {
    return CheckSums(**files.Open("a/big.txt", OpenMode::kRead), "a/big.txt", (*records)[0].sums);
  };
  EXPECT_EQ(check(), absl::OkStatus());
  (*files.Contents("a/big.txt"))[kSummedBlockBytes + 5] = 'y';
  const absl::Status damaged = check();
  EXPECT_THAT(std::string(damaged.message()),
              testing::MatchesRegex("a/big.txt: damaged at bytes \\[1048576, 2097152\\): CRC-32C [0-9a-f]{8}, "
                                    "the manifest says [0-9a-f]{8}"));
}

TEST(CheckpointTest, CutMissingAndSwappedShards) {
  SimulatedFileSystem begin;
  ASSERT_EQ(SaveSteps(&begin, {.attempt = 1}, {1, 2}), absl::OkStatus());
  const std::string shard = "step-00000002/optimizer-rank00000.safetensors";
  const auto rejected = [](SimulatedFileSystem* files) {
    const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(files);
    EXPECT_EQ(found.status(), absl::OkStatus());
    EXPECT_TRUE(HoldsItsStep(files, *found));
    return found->rejected.empty() ? "nothing" : found->rejected.front();
  };
  auto files = begin.Restart(CrashState::kNothing);
  files->Contents(shard)->pop_back();
  EXPECT_THAT(rejected(files.get()), HasSubstr(shard + ": "));
  files = begin.Restart(CrashState::kNothing);
  ASSERT_EQ(files->Remove(shard), absl::OkStatus());
  EXPECT_THAT(rejected(files.get()), HasSubstr(shard + ": No such file"));
  // The other step's file of the same size and name.
  files = begin.Restart(CrashState::kNothing);
  *files->Contents(shard) = *files->Contents("step-00000001/optimizer-rank00000.safetensors");
  EXPECT_THAT(rejected(files.get()), HasSubstr(shard + ": damaged at bytes [0, "));
  // The other step's folder as a whole, and its manifest alone.
  files = begin.Restart(CrashState::kNothing);
  *files->Contents("step-00000002/MANIFEST.json") = *files->Contents("step-00000001/MANIFEST.json");
  EXPECT_THAT(rejected(files.get()), HasSubstr("not the manifest that LATEST names"));
}

TEST(CheckpointTest, WithoutLatestTheNewestWholeOne) {
  SimulatedFileSystem files;
  EXPECT_EQ(FindCheckpoint(&files).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {1, 2}), absl::OkStatus());
  ASSERT_EQ(files.Remove("LATEST"), absl::OkStatus());
  EXPECT_EQ(FindCheckpoint(&files)->manifest.step, 2);
  // LATEST names a missing checkpoint.
  *files.Contents("step-00000001/MANIFEST.json") += " ";
  ASSERT_EQ(files.Rename("step-00000002", "elsewhere"), absl::OkStatus());
  const absl::Status none = FindCheckpoint(&files).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(none.message()), HasSubstr("step-00000001/MANIFEST.json: damaged"));
}

TEST(CheckpointTest, ANewerFormatIsNotPassedOver) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {1, 2}), absl::OkStatus());
  std::string& text = *files.Contents("step-00000002/MANIFEST.json");
  std::string body = text.substr(0, text.find(",\"manifest_sha256"));
  body.replace(body.find("\"version\":1"), 11, "\"version\":2");
  text = absl::StrCat(body, ",\"manifest_sha256\":\"", Sha256Hex(body), "\"}\n");
  *files.Contents("LATEST") = EncodeLatest({"step-00000002", Sha256Hex(text)});
  const absl::Status status = FindCheckpoint(&files).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "step-00000002/MANIFEST.json: format version 2, this program reads version 1");
}

TEST(CheckpointTest, KeepsTheLastAndEveryMth) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1, .keep_last = 2, .keep_every = 20}, {10, 20, 30, 40, 50, 60, 70}),
            absl::OkStatus());
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000020", "step-00000040", "step-00000060", "step-00000070"));
}

// Whichever save names it, and no longer.
TEST(CheckpointTest, KeepsTheStepThatItIsGiven) {
  SimulatedFileSystem files;
  const auto writer = CheckpointWriter::Open(&files, {.attempt = 1, .keep_last = 2});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  for (const int64_t step : {10, 20, 30, 40, 50}) {
    ASSERT_EQ(SaveStep(&files, writer->get(), step, 2, /*kept_step=*/step < 20 ? 0 : 20), absl::OkStatus());
  }
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000020", "step-00000040", "step-00000050"));
  ASSERT_EQ(SaveStep(&files, writer->get(), 60, 2, /*kept_step=*/60), absl::OkStatus());
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000050", "step-00000060"));
}

// Another job has begun from it.  It is none of the last ones that are kept, and its file outlives a save of its step.
TEST(CheckpointTest, KeepsWhatHasTheFileKeep) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1, .keep_last = 1}, {10}), absl::OkStatus());
  ASSERT_EQ(WriteFiles(&files, "step-00000010", {{"KEEP", {}, ""}}).status(), absl::OkStatus());
  ASSERT_EQ(SaveSteps(&files, {.attempt = 2, .resumed_from = "step-00000010", .keep_last = 2}, {20, 30, 40}),
            absl::OkStatus());
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000010", "step-00000030", "step-00000040"));
  ASSERT_EQ(WriteFiles(&files, "step-00000040", {{"KEEP", {}, ""}}).status(), absl::OkStatus());
  const auto writer = CheckpointWriter::Open(&files, {.attempt = 3, .resumed_from = "step-00000030", .keep_last = 1});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  for (const int64_t step : {40, 50, 60}) ASSERT_EQ(SaveStep(&files, writer->get(), step), absl::OkStatus());
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000010", "step-00000040", "step-00000060"));
  EXPECT_EQ(FindCheckpoint(&files)->manifest.step, 60);
}

// Going back begins another line of training: the first save removes later steps, which never count as the last ones.
TEST(CheckpointTest, GoingBack) {
  SimulatedFileSystem files;
  ASSERT_EQ(SaveSteps(&files, {.attempt = 1}, {10, 20, 30}), absl::OkStatus());
  const auto writer = CheckpointWriter::Open(&files, {.attempt = 2, .resumed_from = "step-00000010"});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  EXPECT_EQ(FindCheckpoint(&files)->manifest.step, 10);
  EXPECT_EQ(StepsOf(&files).size(), 3u);
  ASSERT_EQ(SaveStep(&files, writer->get(), 20), absl::OkStatus());
  EXPECT_THAT(StepsOf(&files), ElementsAre("step-00000010", "step-00000020"));
  const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(&files);
  EXPECT_EQ(found->manifest.attempt, 2);
  EXPECT_EQ((*writer)->Begin(20, 0).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*writer)->Begin(-1, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckpointTest, OneWriterAtATimeAndNoOldAttempt) {
  SimulatedFileSystem files;
  {
    const auto first = CheckpointWriter::Open(&files, {.attempt = 5, .holder = "attempt 5 of job a"});
    ASSERT_EQ(first.status(), absl::OkStatus());
    const absl::Status second = CheckpointWriter::Open(&files, {.attempt = 6}).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(second.message(), "LOCK: locked by attempt 5 of job a");
    ASSERT_EQ(SaveStep(&files, first->get(), 1), absl::OkStatus());
  }
  const absl::Status old = CheckpointWriter::Open(&files, {.attempt = 4, .resumed_from = "step-00000001"}).status();
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(old.message(), "checkpoints: attempt 4 is over: step-00000001 is of attempt 5");
  EXPECT_EQ(CheckpointWriter::Open(&files, {.attempt = 6}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckpointWriter::Open(&files, {.attempt = 6, .resumed_from = "step-00000009"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(CheckpointWriter::Open(&files, {.keep_last = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckpointTest, FullDiskIsSaidBeforeAnythingIsWritten) {
  SimulatedFileSystem files;
  const auto writer = CheckpointWriter::Open(&files, {.attempt = 1});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  const int64_t calls = files.calls();
  files.set_free_bytes(100'000);
  const absl::Status status = (*writer)->Begin(1, 50'000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "step-00000001: needs 115536 bytes, 100000 are free");
  EXPECT_EQ(files.calls(), calls);
  EXPECT_EQ((*writer)->Begin(1, 30'000).status(), absl::OkStatus());
}

TEST(CheckpointTest, RecordsThatCannotBe) {
  SimulatedFileSystem files;
  const auto writer = CheckpointWriter::Open(&files, {.attempt = 1});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  const auto commit = [&](std::vector<FileRecord> records) {
    EXPECT_EQ((*writer)->Begin(1, 0).status(), absl::OkStatus());
    Manifest manifest;
    manifest.step = 1;
    manifest.files = std::move(records);
    return (*writer)->Commit(manifest);
  };
  EXPECT_THAT(std::string(commit({{"a", {}}, {"a", {}}}).message()), HasSubstr("a: written by two ranks"));
  EXPECT_EQ(commit({{"MANIFEST.json", {}}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(commit({{"../a", {}}}).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status absent = commit({{"a", {}}});
  EXPECT_EQ(absent.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("do all ranks have the same directory?"));
  EXPECT_EQ(FindCheckpoint(&files).status().code(), absl::StatusCode::kNotFound);
}

class RealDisk : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "checkpoint_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    files_ = *OpenPosixFileSystem(root_);
  }
  void TearDown() override { ASSERT_EQ(std::system(absl::StrCat("rm -rf '", root_, "'").c_str()), 0); }

  std::string root_;
  std::unique_ptr<FileSystem> files_;
};

TEST_F(RealDisk, SavesLocksRemovesAndIsFound) {
  ASSERT_EQ(SaveSteps(files_.get(), {.attempt = 1, .keep_last = 2}, {1, 2, 3}), absl::OkStatus());
  EXPECT_THAT(StepsOf(files_.get()), ElementsAre("step-00000002", "step-00000003"));
  const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(files_.get());
  ASSERT_EQ(found.status(), absl::OkStatus());
  EXPECT_TRUE(HoldsItsStep(files_.get(), *found));
  const auto writer =
      CheckpointWriter::Open(files_.get(), {.attempt = 2, .holder = "me", .resumed_from = found->folder});
  ASSERT_EQ(writer.status(), absl::OkStatus());
  // Another process, as far as flock knows.
  const auto other = OpenPosixFileSystem(root_);
  EXPECT_EQ(CheckpointWriter::Open(other->get(), {.attempt = 3}).status().message(), "LOCK: locked by me");
  // The next writer removes an unfinished save.
  ASSERT_EQ((*writer)->Begin(7, 0).status(), absl::OkStatus());
  ASSERT_EQ((*writer)->Begin(8, 0).status(), absl::OkStatus());
  EXPECT_THAT(StepsOf(files_.get()), ElementsAre("step-00000002", "step-00000003", "step-00000008.tmp-2"));
}

// The weights are a directory that our server loads, whatever ranks wrote them.
TEST_F(RealDisk, LoadsAsAModelDirectory) {
  const auto writer = CheckpointWriter::Open(files_.get(), {.attempt = 1});
  for (const int world : {1, 3, 5}) {
    ASSERT_EQ(SaveStep(files_.get(), writer->get(), world, world), absl::OkStatus());
    const absl::StatusOr<FoundCheckpoint> found = FindCheckpoint(files_.get());
    EXPECT_EQ(found->manifest.saved_by.world, world);
    EXPECT_TRUE(HoldsItsStep(files_.get(), *found));
    const absl::StatusOr<Checkpoint> weights = Checkpoint::Open(root_ + "/" + found->folder);
    ASSERT_EQ(weights.status(), absl::OkStatus());
    EXPECT_EQ(weights->TensorNames().size(), 5u);
    EXPECT_EQ(weights->files().size(), static_cast<size_t>(world));
  }
}

// The files of config and tokenizer that exist, and nothing else of the directory.
TEST_F(RealDisk, TakesOverWhatBelongsToTheModel) {
  ASSERT_EQ(files_->MakeFolder("model"), absl::OkStatus());
  const std::vector<CheckpointFile> there = {
      {"config.json", {}, "{}"}, {"notes.txt", {}, "x"}, {"vocab.json", {}, "[]"}};
  ASSERT_EQ(WriteFiles(files_.get(), "model", there).status(), absl::OkStatus());
  const absl::StatusOr<ModelDir> model = ModelDir::Open(root_ + "/model");
  ASSERT_EQ(model.status(), absl::OkStatus());
  const auto taken = SideFiles(*model);
  ASSERT_EQ(taken.status(), absl::OkStatus());
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_EQ((*taken)[0].name, "config.json");
  EXPECT_EQ((*taken)[0].text, "{}");
  EXPECT_EQ((*taken)[1].name, "vocab.json");
}

TEST_F(RealDisk, NothingOutsideIsTouched) {
  for (const char* path : {"../a", "a/../b", "/a", "a/b/c", "."}) {
    EXPECT_EQ(files_->Open(path, OpenMode::kCreate).status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(files_->MakeFolder(path).code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(files_->Remove(path).code(), absl::StatusCode::kInvalidArgument) << path;
  }
  // Links lead to another folder of the test's own: a lock through one would empty what it leads to.
  ASSERT_EQ(files_->MakeFolder("root"), absl::OkStatus());
  ASSERT_EQ(files_->MakeFolder("outside"), absl::OkStatus());
  ASSERT_EQ(WriteFiles(files_.get(), "outside", {{"file", {}, "kept"}}).status(), absl::OkStatus());
  ASSERT_EQ(symlink("../outside", (root_ + "/root/folder").c_str()), 0);
  ASSERT_EQ(symlink("../outside/file", (root_ + "/root/link").c_str()), 0);
  ASSERT_EQ(mkfifo((root_ + "/root/fifo").c_str(), 0600), 0);
  const auto inner = OpenPosixFileSystem(root_ + "/root");
  ASSERT_EQ(inner.status(), absl::OkStatus());
  EXPECT_FALSE((*inner)->Open("folder/file", OpenMode::kRead).ok());
  EXPECT_FALSE((*inner)->Open("folder/file", OpenMode::kLock).ok());
  EXPECT_FALSE((*inner)->List("folder").ok());
  EXPECT_FALSE((*inner)->Remove("folder/file").ok());
  for (const OpenMode mode : {OpenMode::kRead, OpenMode::kLock}) {
    EXPECT_EQ((*inner)->Open("link", mode).status().code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(*ReadWholeFile(files_.get(), "outside/file", 100), "kept");
  EXPECT_EQ((*inner)->Open("fifo", OpenMode::kRead).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(files_->Open("absent", OpenMode::kRead).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenPosixFileSystem(root_ + "/absent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace switchyard::checkpoint
