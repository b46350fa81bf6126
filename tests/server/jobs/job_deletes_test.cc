// Deleting jobs: which may be deleted, what stays after a kill, and their folders.
#include <filesystem>
#include <fstream>

#include "server/jobs/job_folder.h"
#include "tests/no_descriptors.h"
#include "tests/server/jobs/manager_fixture.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(ManagerTest, OnlyAJobThatHasEndedIsDeleted) {
  const std::string id = Running();
  for (const bool cancelling : {false, true}) {
    if (cancelling) ASSERT_TRUE(manager_->Cancel(id).ok());
    const absl::Status refused = manager_->Delete(id);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonIn(refused), "JOB_STATE");
    EXPECT_EQ(refused.message(), absl::StrCat(id, " is ", cancelling ? "CANCELLING" : "RUNNING",
                                              "; only a job that has ended can be deleted: cancel it first"));
  }
  AllEnd(jobs::TrainOutcome::kStopped);
  ASSERT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_TRUE(manager_->Delete(id).ok());
  EXPECT_EQ(manager_->Get(id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager_->Delete(id).code(), absl::StatusCode::kNotFound) << "it is no more";
  EXPECT_TRUE(manager_->List({}).jobs.empty());
}

// The folder is known until it is removed, by this server or the next one.
TEST_F(ManagerTest, ADeletedJobIsGoneAfterAKillAndItsFolderIsKnown) {
  const std::string request = "once";
  const std::string id = Begun(Spec(), request);
  AllStart();
  AllEnd(jobs::TrainOutcome::kFinished);
  ASSERT_TRUE(manager_->Delete(id).ok());
  Restart();
  EXPECT_FALSE(manager_->Get(id).ok());
  EXPECT_THAT(*manager_->DeletedJobs(), ElementsAre(id));
  manager_->FolderRemoved(id);
  EXPECT_THAT(*manager_->DeletedJobs(), IsEmpty());
  EXPECT_NE(Submit(Spec(), request), id) << "the request's id is free again";
}

TEST_F(ManagerTest, WhatCannotBeJournaledIsNotDeleted) {
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kFinished);
  journal_.error = absl::ResourceExhaustedError("no room");
  const absl::Status refused = manager_->Delete(id);
  EXPECT_EQ(ReasonIn(refused), "DISK_FULL") << refused;
  EXPECT_EQ(StateOf(id), jobs::JobState::kSucceeded);
  journal_.error = absl::OkStatus();
  EXPECT_TRUE(manager_->Delete(id).ok());
}

TEST_F(ManagerTest, AJobWhoseFilesAnotherOneBeginsFromStays) {
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kFinished);
  jobs::JobSpec spec = Spec();
  spec.architecture.clear();
  spec.base_checkpoint = id + "/step-00000100";
  const std::string user = Submit(spec);
  EXPECT_EQ(manager_->Delete(id).message(),
            absl::StrCat(id, " is SUCCEEDED, but ", user, ", which has not ended, begins from its files"));
  ASSERT_TRUE(manager_->Cancel(user).ok());
  manager_->Tick();
  EXPECT_TRUE(manager_->Delete(id).ok());
}

TEST_F(ManagerTest, AJobWhoseAdaptersAreOfAnotherOneKeepsIt) {
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kFinished);
  jobs::JobSpec spec = Spec();
  spec.architecture.clear();
  spec.base_checkpoint = id + "/step-00000100";
  spec.lora.rank = 4;
  const std::string none = Submit(spec), adapters = Submit(spec);
  ASSERT_TRUE(manager_->Cancel(none).ok()) << "it never saved";
  manager_->Tick();
  AllStart();
  manager_->runs().OnTraining(1, trainers_.at(1)->epoch(), jobs::SavedCheckpoint{.step = 100, .folder = "x"});
  AllEnd(jobs::TrainOutcome::kFinished);
  EXPECT_EQ(manager_->Delete(id).message(),
            absl::StrCat(id, " is SUCCEEDED, but ", adapters, " has adapters of it: delete that one first"));
  ASSERT_TRUE(manager_->Delete(adapters).ok());
  EXPECT_TRUE(manager_->Delete(id).ok());
}

TEST_F(ManagerTest, AJobThatIsServedIsNotDeleted) {
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kFinished);
  options_.served = {"models/m", id + "/step-00000100"};
  Restart();
  EXPECT_EQ(manager_->Delete(id).message(),
            absl::StrCat(id, " is SUCCEEDED, but this server serves ", id, "/step-00000100"));
  options_.served = {id + "0/step-00000100"};
  Restart();
  EXPECT_TRUE(manager_->Delete(id).ok());
}

// The files of its spec were checked before the deletion, or while it was made.
TEST_F(ManagerTest, AJobDoesNotBeginFromADeletedOne) {
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kFinished);
  ASSERT_TRUE(manager_->Delete(id).ok());
  jobs::JobSpec spec = Spec();
  spec.architecture.clear();
  spec.base_checkpoint = id + "/step-00000100";
  const absl::Status refused = manager_->Submit("", spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(refused.message(), absl::StrCat("spec: its model is in the folder of ", id, ", which was deleted"));
  EXPECT_EQ(ReasonIn(refused), "BAD_FILE");
  spec.base_checkpoint = id + "0";
  EXPECT_TRUE(manager_->Submit("", spec).ok()) << "another folder";
}

class JobFolderTest : public testing::Test {
 protected:
  JobFolderTest() : root_(*RootDir::Open(dir_.path(), "the root")) {}
  fs::path Make(const std::string& name, const std::string& contents) {
    const fs::path path = fs::path(dir_.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << contents;
    return path;
  }

  const model::TempDir dir_;
  const RootDir root_;
};

TEST_F(JobFolderTest, OnlyACheckpointThatIsThereIsKept) {
  const fs::path folder = Make("job-1/step-00000004/MANIFEST.json", "{}").parent_path();
  EXPECT_EQ(KeepCheckpoint(root_, "job-1/step-00000004"), absl::OkStatus());
  EXPECT_EQ(KeepCheckpoint(root_, "job-1/step-00000004"), absl::OkStatus()) << "twice";
  EXPECT_TRUE(fs::exists(folder / "KEEP"));
  Make("job-1/step-00000012/model.safetensors", "");
  EXPECT_EQ(KeepCheckpoint(root_, "job-1/step-00000012"), absl::OkStatus());
  EXPECT_FALSE(fs::exists(fs::path(dir_.path()) / "job-1/step-00000012/KEEP")) << "without a manifest it is no job's";
  Make("model/config.json", "{}");
  EXPECT_EQ(KeepCheckpoint(root_, "model"), absl::OkStatus());
  EXPECT_FALSE(fs::exists(fs::path(dir_.path()) / "model" / "KEEP")) << "no job removes it";
}

TEST_F(JobFolderTest, AFolderIsBeneathTheRootWhateverLeadsThere) {
  const fs::path folder = Make("job-1/step-00000004/MANIFEST.json", "{}").parent_path();
  const model::TempDir elsewhere;
  fs::create_directory_symlink(folder, fs::path(elsewhere.path()) / "link");
  EXPECT_EQ(FolderBeneath(root_, folder.string()), "job-1/step-00000004");
  EXPECT_EQ(FolderBeneath(root_, (folder / ".." / "step-00000004/").string()), "job-1/step-00000004");
  EXPECT_EQ(FolderBeneath(root_, elsewhere.path() + "/link"), "job-1/step-00000004");
  EXPECT_EQ(FolderBeneath(root_, elsewhere.path()), "");
  EXPECT_EQ(FolderBeneath(root_, root_.path()), "");
  EXPECT_EQ(FolderBeneath(root_, root_.path() + "/none"), "");
}

TEST_F(JobFolderTest, AForkKeepsWhatItShares) {
  Make("job-1/log/steps.csv", "1234567");
  Make("job-1/step-00000004/MANIFEST.json", "123");
  const fs::path shared = Make("job-1/step-00000004/model.safetensors", std::string(1000, 'x'));
  fs::create_directories(fs::path(dir_.path()) / "job-2/step-00000004");
  const fs::path fork = fs::path(dir_.path()) / "job-2/step-00000004/model.safetensors";
  fs::create_hard_link(shared, fork);
  const absl::StatusOr<int64_t> freed = RemoveJobFolder(root_, "job-1");
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(*freed, 10) << "what the fork shares with it is not freed";
  EXPECT_FALSE(fs::exists(fs::path(dir_.path()) / "job-1"));
  EXPECT_EQ(fs::file_size(fork), 1000u);
  EXPECT_EQ(*RemoveJobFolder(root_, "job-1"), 0) << "it is not there any more";
}

// A fork that is made at this moment must not see a part of a checkpoint.
TEST_F(JobFolderTest, TheFolderIsOutOfSightBeforeItLosesAFile) {
  const fs::path root = dir_.path();
  Make("job-1/step-00000004/MANIFEST.json", "123");
  {
    const NoDescriptors none;  // so no folder can be emptied
    EXPECT_TRUE(absl::IsUnavailable(RemoveJobFolder(root_, "job-1").status()));
  }
  EXPECT_FALSE(fs::exists(root / "job-1"));
  EXPECT_TRUE(fs::exists(root / "job-1.tmp-removed/step-00000004/MANIFEST.json"));
  EXPECT_EQ(*RemoveJobFolder(root_, "job-1"), 3) << "the next call goes on";
  EXPECT_TRUE(fs::is_empty(root));
}

TEST_F(JobFolderTest, NothingOutsideIsRemoved) {
  const fs::path other = Make("other/file", "precious");
  fs::create_directory_symlink(other.parent_path(), fs::path(dir_.path()) / "job-1");
  Make("job-2/file", "1");
  fs::create_directory_symlink(other.parent_path(), fs::path(dir_.path()) / "job-2/link");
  fs::create_symlink(other, fs::path(dir_.path()) / "job-2/file_link");
  EXPECT_EQ(*RemoveJobFolder(root_, "job-1"), 0);
  EXPECT_EQ(*RemoveJobFolder(root_, "job-2"), 1);
  EXPECT_FALSE(fs::exists(fs::symlink_status(fs::path(dir_.path()) / "job-1")));
  EXPECT_FALSE(fs::exists(fs::path(dir_.path()) / "job-2"));
  EXPECT_TRUE(fs::exists(other));
  for (const char* name : {"..", ".", "", "a/b"}) {
    EXPECT_EQ(RemoveJobFolder(root_, name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(fs::exists(other));
}

}  // namespace
}  // namespace switchyard::server
