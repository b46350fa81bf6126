// The folder of a fork: what it has of its parent's, and that nothing half-made stays.
#include "server/jobs/fork/fork_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/crc32c.h"
#include "server/jobs/fork/seed_fork.h"
#include "server/jobs/job_folder.h"
#include "server/jobs/journal/loss_log.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ForkFolderTest : public testing::Test {
 protected:
  ForkFolderTest() {
    for (const int step : {8, 12, 20}) Save(step);
    fs::create_directories(dir_.path() + "/job-1/step-00000024.tmp-1");
    fs::create_directories(dir_.path() + "/job-1/step-00000028");  // without a manifest
    parent_.id = "job-1";
    parent_.attempt = 2;
    parent_.files_ready = 2;
    parent_.spec.architecture = "demo";
    parent_.spec.datasets = {"a.jsonl", "b.bin"};
    parent_.spec.evaluation = {"c.jsonl"};
    parent_.spec.steps = 40;
    for (const char* file : {"datasets.bin", "evaluation.bin", "packing.log", "chunks.log", "LATEST", "LOCK"}) {
      dir_.Write(absl::StrCat("job-1/", file), file);
    }
  }
  void Save(int step) {
    const std::string folder = absl::StrFormat("job-1/step-%08d", step);
    fs::create_directories(dir_.path() + "/" + folder);
    dir_.Write(folder + "/MANIFEST.json", absl::StrCat("manifest of ", step));
    dir_.Write(folder + "/model.safetensors", absl::StrCat("weights of ", step));
  }
  RootDir Root() const { return *RootDir::Open(dir_.path(), "the checkpoint root"); }
  absl::StatusOr<ForkedJob> Seed(const jobs::JobSpec& spec, std::optional<int64_t> step = {}) {
    return SeedFork(Root(), parent_, {.step = step}, spec, "job-2", 77);
  }
  // All files beneath a folder.
  std::set<std::string> Files(const std::string& folder) const {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path() + "/" + folder)) {
      if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), dir_.path() + "/" + folder));
    }
    return files;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(dir_.path() + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool Exists(const std::string& name) const { return fs::exists(dir_.path() + "/" + name); }

  const model::TempDir dir_;
  Job parent_;
};

TEST_F(ForkFolderTest, ItHasTheNewestCheckpointAndWhatBelongsToIt) {
  EXPECT_THAT(*ListCheckpoints(Root(), "job-1"), ElementsAre(20, 12, 8));
  EXPECT_THAT(*ListCheckpoints(Root(), "job-none"), IsEmpty());
  const absl::StatusOr<ForkedJob> forked = Seed(parent_.spec);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->origin, (jobs::ForkOrigin{.job = "job-1", .step = 20, .attempts = 2}));
  EXPECT_EQ(forked->checkpoint.folder, "job-2/step-00000020");
  EXPECT_EQ(forked->checkpoint.bytes, 27);
  EXPECT_EQ(forked->files_ready, 2);
  EXPECT_THAT(Files("job-2"), ElementsAre("FORKING", "chunks.log", "datasets.bin", "evaluation.bin", "packing.log",
                                          "step-00000020/MANIFEST.json", "step-00000020/model.safetensors"));
  ASSERT_TRUE(ConfirmForkFolder(Root(), "job-2").ok());
  EXPECT_FALSE(Exists("job-2/FORKING"));
  // What becomes of the parent is nothing to the fork.
  fs::remove_all(dir_.path() + "/job-1");
  EXPECT_EQ(Read("job-2/step-00000020/model.safetensors"), "weights of 20");
  EXPECT_THAT(*ListCheckpoints(Root(), "job-2"), ElementsAre(20));
}

TEST_F(ForkFolderTest, FilesAreLinksWhereTheyCanBeElseCopies) {
  ASSERT_TRUE(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 12}).ok());
  ASSERT_TRUE(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-3", .step = 12, .may_link = false}).ok());
  const std::string file = "/step-00000012/model.safetensors";
  EXPECT_EQ(fs::hard_link_count(dir_.path() + "/job-2" + file), 2u);
  EXPECT_EQ(fs::hard_link_count(dir_.path() + "/job-3" + file), 1u);
  EXPECT_EQ(Read("job-3" + file), "weights of 12");
}

TEST_F(ForkFolderTest, ChangesDecideWhatOfTheParentHolds) {
  const auto ready = [&](auto change) {
    jobs::JobSpec spec = parent_.spec;
    change(&spec);
    const absl::StatusOr<ForkedJob> forked = Seed(spec, 8);
    EXPECT_TRUE(forked.ok()) << forked.status();
    std::set<std::string> files = Files("job-2");
    fs::remove_all(dir_.path() + "/job-2");
    for (const char* each : {"FORKING", "step-00000008/MANIFEST.json", "step-00000008/model.safetensors"}) {
      EXPECT_EQ(files.erase(each), 1u) << each;
    }
    return std::pair(forked->files_ready, std::vector<std::string>(files.begin(), files.end()));
  };
  EXPECT_THAT(ready([](auto* s) { s->datasets = {"d.jsonl"}; }),
              testing::Pair(0, ElementsAre("chunks.log", "packing.log")));
  EXPECT_THAT(ready([](auto* s) { s->evaluation = {}; }),
              testing::Pair(1, ElementsAre("chunks.log", "datasets.bin", "packing.log")));
  EXPECT_THAT(ready([](auto* s) { s->batch_sequences = 64; }), testing::Pair(0, IsEmpty()));
  EXPECT_THAT(ready([](auto* s) { s->workers = 2; }), testing::Pair(2, ElementsAre("datasets.bin", "evaluation.bin")));
  fs::remove(dir_.path() + "/job-1/datasets.bin");
  EXPECT_THAT(ready([](auto* s) { s->workers = 2; }), testing::Pair(0, ElementsAre("evaluation.bin")));
}

TEST_F(ForkFolderTest, WhatIsNotThereIsRefusedByName) {
  const absl::Status no_step = Seed(parent_.spec, 24).status();
  EXPECT_EQ(no_step.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(no_step.message(), "step: job-1 has no checkpoint of step 24, it has 20, 12, 8");
  jobs::JobSpec shorter = parent_.spec;
  shorter.steps = 20;
  EXPECT_THAT(std::string(Seed(shorter).status().message()), HasSubstr("nothing is left to do"));
  EXPECT_TRUE(Seed(shorter, 12).ok()) << "fewer steps than the parent has done";
  fs::remove_all(dir_.path() + "/job-2");
  parent_.id = "job-none";
  const absl::Status none = Seed(parent_.spec).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.message(), "job-none has no checkpoint to fork");
  jobs::JobSpec pairs = parent_.spec;
  pairs.dpo.beta = 0.1;
  const absl::Status no_pairs = Seed(pairs).status();
  EXPECT_EQ(no_pairs.code(), none.code());
  EXPECT_EQ(no_pairs.message(), none.message()) << "a job that has not begun has no folder";
  EXPECT_FALSE(Exists("job-2"));
}

TEST_F(ForkFolderTest, AfterAnErrorThereIsNoFolder) {
  EXPECT_TRUE(absl::IsNotFound(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 28}).status()));
  EXPECT_FALSE(Exists("job-2"));
  fs::create_directory(dir_.path() + "/job-1/step-00000020/folder");
  const absl::Status odd = MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 20}).status();
  EXPECT_EQ(odd.message(), "\"folder\": not a regular file");
  EXPECT_FALSE(Exists("job-2"));
  fs::create_directory(dir_.path() + "/job-2");
  EXPECT_TRUE(absl::IsAlreadyExists(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 8}).status()));
  EXPECT_TRUE(Exists("job-2")) << "it is another's";
}

TEST_F(ForkFolderTest, AParentThatIsDeletedMeanwhileIsNotForkedInPart) {
  int asked = 0;
  const auto remove_before_third = [&] {
    if (++asked == 3) EXPECT_TRUE(RemoveJobFolder(Root(), "job-1").ok());
    return false;
  };
  const absl::Status gone =
      MakeForkFolder(
          Root(),
          {.parent = "job-1", .fork = "job-2", .step = 20, .also = {"packing.log"}, .give_up = remove_before_third})
          .status();
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_EQ(asked, 3) << "the checkpoint has two files";
  EXPECT_FALSE(Exists("job-2"));
}

// Else the fork's first checkpoint would stay for ever.
TEST_F(ForkFolderTest, TheMarkOfAKeptCheckpointStaysTheParents) {
  dir_.Write("job-1/step-00000020/KEEP", "");
  ASSERT_TRUE(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 20}).ok());
  EXPECT_THAT(Files("job-2/step-00000020"), ElementsAre("MANIFEST.json", "model.safetensors"));
  EXPECT_TRUE(Exists("job-1/step-00000020/KEEP"));
}

// As a crash between the folder and the journal leaves it, or between the journal and the confirmation.
TEST_F(ForkFolderTest, AStartFindsWhatIsOfNoJob) {
  const std::string parent = "job-000000000001", half = "job-00000000000a", job = "job-00000000000b";
  fs::rename(dir_.path() + "/job-1", dir_.path() + "/" + parent);
  for (const std::string& fork : {half, job}) {
    ASSERT_TRUE(MakeForkFolder(Root(), {.parent = parent, .fork = fork, .step = 8}).ok());
  }
  // Whatever else has such a file is a user's.
  for (const char* folder : {"models", "job-00000000000g", "job-00000000000", "job-00000000000c"}) {
    fs::create_directories(dir_.path() + "/" + folder);
    fs::copy_file(dir_.path() + "/" + half + "/FORKING", dir_.path() + "/" + folder + "/FORKING");
  }
  dir_.Write("job-00000000000c/FORKING", "of somebody\n");
  const auto is_job = [&](const std::string& id) { return id == job; };
  EXPECT_THAT(FindUnfinishedForks(Root(), is_job), ElementsAre(half));
  EXPECT_TRUE(Exists(job + "/step-00000008/MANIFEST.json"));
  EXPECT_FALSE(Exists(job + "/FORKING"));
  EXPECT_THAT(FindUnfinishedForks(Root(), [](const std::string&) { return false; }), ElementsAre(half))
      << "the journal may have forgotten a job, its folder stays";
  RemoveForkFolder(Root(), half);
  EXPECT_FALSE(Exists(half));
}

TEST_F(ForkFolderTest, ACopyIsGivenUpBetweenTwoMiB) {
  dir_.Write("job-1/step-00000008/model.safetensors", std::string(size_t{3} << 20, 'x'));
  for (const int most : {0, 3, 5}) {
    int asked = 0;
    const absl::Status status = MakeForkFolder(Root(), {.parent = "job-1",
                                                        .fork = "job-2",
                                                        .step = 8,
                                                        .may_link = false,
                                                        .give_up = [&] { return asked++ == most; }})
                                    .status();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(asked, most + 1);
    EXPECT_FALSE(Exists("job-2"));
  }
}

// Workers go on from the checkpoint that LATEST names, though a later one, which they found damaged, is still there.
TEST_F(ForkFolderTest, TheCheckpointThatCountsIsTheFirst) {
  const auto latest = [&](const std::string& step) {
    const std::string text = step + " " + std::string(64, 'a') + " ";
    dir_.Write("job-1/LATEST", text + absl::StrFormat("%08x\n", Crc32c(text)));
  };
  latest("step-00000012");
  EXPECT_THAT(*ListCheckpoints(Root(), "job-1"), ElementsAre(12, 8, 20));
  EXPECT_EQ(Seed(parent_.spec)->origin.step, 12);
  latest("step-00000020");
  EXPECT_THAT(*ListCheckpoints(Root(), "job-1"), ElementsAre(20, 12, 8));
  dir_.Write("job-1/LATEST", "step-00000012 " + std::string(64, 'a') + " 00000000\n");
  EXPECT_THAT(*ListCheckpoints(Root(), "job-1"), ElementsAre(20, 12, 8)) << "it is damaged";
}

TEST_F(ForkFolderTest, PackedTextOfTheParentCountsWhereItHolds) {
  EXPECT_EQ(PackedForFork(Root(), parent_, parent_.spec), 2);
  jobs::JobSpec spec = parent_.spec;
  spec.evaluation = {"d.jsonl"};
  EXPECT_EQ(PackedForFork(Root(), parent_, spec), 1);
  spec.datasets = {"d.jsonl"};
  EXPECT_EQ(PackedForFork(Root(), parent_, spec), 0);
  fs::remove(dir_.path() + "/job-1/datasets.bin");
  EXPECT_EQ(PackedForFork(Root(), parent_, parent_.spec), 0);
}

// A parent of several sets has packed each into a file of its own.
TEST_F(ForkFolderTest, PackedTextOfSetsCountsWhereTheirNamesAreTheSame) {
  parent_.spec.evaluation = {"c.jsonl", "d.jsonl"};
  parent_.spec.evaluation_names = {"x", "y"};
  parent_.files_ready = 3;
  for (const char* file : {"evaluation-0.bin", "evaluation-1.bin"}) dir_.Write(absl::StrCat("job-1/", file), file);
  EXPECT_EQ(PackedForFork(Root(), parent_, parent_.spec), 3);
  jobs::JobSpec spec = parent_.spec;
  spec.evaluation_names = {"x", "x"};
  EXPECT_EQ(PackedForFork(Root(), parent_, spec), 1);
  const absl::StatusOr<ForkedJob> forked = Seed(parent_.spec);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->files_ready, 3);
  EXPECT_EQ(Read("job-2/evaluation-1.bin"), "evaluation-1.bin");
  fs::remove(dir_.path() + "/job-1/evaluation-1.bin");
  EXPECT_EQ(PackedForFork(Root(), parent_, parent_.spec), 2);
}

TEST_F(ForkFolderTest, AForkHasWhatTheReferenceSays) {
  const std::string one = "reference-0000000000000001.bin", two = "reference-00000000000000ff.bin";
  dir_.Write("job-1/" + two, "two");
  dir_.Write("job-1/" + one, "one");
  dir_.Write("job-1/" + one + ".tmp-3", "a part");
  EXPECT_THAT(*ListReferences(Root(), "job-1"), testing::ElementsAre(one, two));
  jobs::JobSpec spec = parent_.spec;
  spec.dpo.beta = 0.1;
  ASSERT_TRUE(Seed(spec).ok());
  EXPECT_EQ(Read("job-2/" + one), "one");
  EXPECT_EQ(Read("job-2/" + two), "two");
  EXPECT_FALSE(fs::exists(dir_.path() + "/job-2/" + one + ".tmp-3"));
}

TEST_F(ForkFolderTest, LossesUpToTheForkAreItsOwn) {
  LossLog log(Root(), [] { return absl::UnixEpoch(); });
  log.OnStarted(parent_, 0);
  for (int64_t step = 1; step <= 24; ++step) {
    log.OnStep(parent_, {.step = step, .loss = 1.0 / static_cast<double>(step), .seconds = {}});
  }
  log.OnEvaluated(parent_, {.step = 12, .loss = 2, .tokens = 3});
  ASSERT_TRUE(MakeForkFolder(Root(), {.parent = "job-1", .fork = "job-2", .step = 20}).ok());
  dir_.Write("job-1/log/evaluation_sets.csv", "step,set,loss,perplexity,tokens\n12,x,2,7.4,3\n24,x,1,2.7,3\n");
  CopyLosses(Root(), "job-1", "job-2", 20, {.evaluations = true, .named_sets = true});
  EXPECT_EQ(Read("job-2/log/evaluation_sets.csv"), "step,set,loss,perplexity,tokens\n12,x,2,7.4,3\n");
  const std::string whole = Read("job-1/log/steps.csv"), part = Read("job-2/log/steps.csv");
  EXPECT_EQ(part, whole.substr(0, whole.find("\n21,") + 1));
  EXPECT_EQ(Read("job-2/log/evaluations.csv"), Read("job-1/log/evaluations.csv"));
  // The fork's own rows follow.
  Job fork = parent_;
  fork.id = "job-2";
  log.OnStarted(fork, 20);
  log.OnStep(fork, {.step = 21, .loss = 1.0 / 21, .seconds = {}});
  EXPECT_EQ(Read("job-2/log/steps.csv"), whole.substr(0, whole.find("\n22,") + 1));
  CopyLosses(Root(), "job-none", "job-3", 20, {.evaluations = true});  // no error
}

}  // namespace
}  // namespace switchyard::server
