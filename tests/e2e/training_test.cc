// Training jobs end to end: submitted over gRPC, trained by worker processes, saved, served.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(TrainingTest, AJobTrainsAndItsCheckpointServes) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  const auto submitted = training.Submit(TrainingServer::TinySpec(), "once");
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const auto again = training.Submit(TrainingServer::TinySpec(), "once");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id(), submitted->id());
  v1::JobSpec other = TrainingServer::TinySpec();
  other.set_seed(8);
  EXPECT_EQ(training.Submit(other, "once").status().code(), absl::StatusCode::kAlreadyExists);

  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  EXPECT_EQ(job.progress().step(), 24);
  EXPECT_EQ(job.attempt(), 1);
  EXPECT_EQ(job.checkpoint().step(), 24);
  EXPECT_GT(job.progress().loss(), 3);
  EXPECT_LT(job.progress().loss(), 8.72) << "no better than chance: ln 6144";
  const fs::path folder = training.root() / "checkpoints" / job.checkpoint().folder();
  EXPECT_TRUE(fs::exists(folder / "MANIFEST.json")) << folder;

  const auto serving = TestServer::Start({.model = folder, .workers = 1});
  ASSERT_NE(serving, nullptr);
  const StreamSeen seen = Generate(serving->client(), TextRequest("The", 8));
  ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
  EXPECT_EQ(seen.choices.at(0).token_ids.size(), 8u);
}

// Returns the sum of a column of a CSV with a header.
double SumOfColumn(const fs::path& csv, const std::string& column) {
  std::ifstream in(csv);
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> names = absl::StrSplit(line, ',');
  const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), column) - names.begin());
  double sum = 0, value = 0;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (at < cells.size() && absl::SimpleAtod(cells[at], &value)) sum += value;
  }
  return sum;
}

// With a capacity that binds and biases of routers that move.
TEST(TrainingTest, AGpt2WithExpertsTrainsAndServes) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.set_architecture("gpt2");
  spec.set_capacity_factor(0.75);
  spec.set_balance_bias_rate(0.01);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  EXPECT_LT(job.progress().loss(), 8.72) << "no better than chance: ln 6144";
  EXPECT_GT(job.progress().dropped_rows(), 0);
  const double dropped = SumOfColumn(training.job_folder(job.id()) / "log/steps.csv", "dropped_rows");
  EXPECT_GT(dropped, 0);
  // The page is brought up to date every second or so.
  double counted = -1;
  WaitUntil(
      [&] {
        counted = Value(Scrape(training.server()->metrics_address()), "switchyard_train_dropped_rows_total ");
        return counted == dropped;
      },
      kStartLimit);
  EXPECT_EQ(counted, dropped);
  const auto serving =
      TestServer::Start({.model = training.root() / "checkpoints" / job.checkpoint().folder(), .workers = 2});
  ASSERT_NE(serving, nullptr);
  const StreamSeen seen = Generate(serving->client(), TextRequest("The", 8));
  ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
  EXPECT_EQ(seen.choices.at(0).token_ids.size(), 8u);
}

// Serving does not wait for the disk of jobs.
TEST(TrainingTest, AJournalThatCannotBeReadDisablesJobsAndServingGoesOn) {
  for (const bool folder : {false, true}) {
    SCOPED_TRACE(folder ? "a folder in its place" : "a file of another kind");
    TrainingServer training;
    const fs::path journal = training.root() / "checkpoints/jobs.sqlite";
    if (folder) {
      fs::create_directory(journal);
    } else {
      std::ofstream(journal) << std::string(8192, 'x');
    }
    ASSERT_TRUE(training.Start());
    const StreamSeen seen = Generate(training.server()->client(), TextRequest("The", 8));
    ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
    for (const absl::Status& status : {training.Submit(TrainingServer::TinySpec()).status(),
                                       training.Get("job-1").status(), training.Pause("job-1")}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      const std::string text(status.message());
      EXPECT_THAT(text, HasSubstr("training jobs are disabled since this server started: jobs.sqlite: "));
      EXPECT_THAT(text, HasSubstr(folder ? "unable to open database file" : "file is not a database"));
      EXPECT_THAT(text, testing::Not(HasSubstr(training.root().string())));
    }
    EXPECT_TRUE(training.TrainWorkerPids().empty()) << "nothing that they could do";
    EXPECT_THAT(Scrape(training.server()->metrics_address()), HasSubstr("\nswitchyard_train_journal_ok 0\n"));
    EXPECT_THAT(training.server()->process().Output(), HasSubstr("serving goes on without training jobs"));
  }
}

bool MountReadOnly(const std::string& root) { return mount("none", root.c_str(), "tmpfs", MS_RDONLY, nullptr) == 0; }

// Mounts a disk that does not answer: a FUSE mount whose program is gone.
bool MountDead(const std::string& root) {
  const int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  const std::string options = absl::StrCat("fd=", fuse, ",rootmode=40000,user_id=0,group_id=0");
  const bool mounted = fuse >= 0 && mount("none", root.c_str(), "fuse", 0, options.c_str()) == 0;
  const int error = errno;
  close(fuse);
  errno = error;
  return mounted;
}

// Serving goes on, jobs are disabled with a sentence.
void ExpectServingWithoutJobs(TrainingServer* training, const std::string& why) {
  const StreamSeen seen = Generate(training->server()->client(), TextRequest("The", 8));
  EXPECT_TRUE(seen.ok()) << seen.end << seen.fault;
  const absl::Status status = training->Get("job-1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("training jobs are disabled since this server started: "), HasSubstr(why),
                             testing::Not(HasSubstr(training->root() / "checkpoints"))));
  EXPECT_THAT(training->server()->process().Output(), HasSubstr("serving goes on without training jobs"));
  EXPECT_THAT(Scrape(training->server()->metrics_address()), HasSubstr("\nswitchyard_train_journal_ok 0\n"));
}

void StartBesideRoot(TrainingServer* training, bool (*mount_root)(const std::string& root), const std::string& why) {
  const std::string root = training->root() / "checkpoints";
  // Only for this thread and the processes that it starts.
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      !mount_root(root)) {
    GTEST_SKIP() << "may not mount here: " << std::strerror(errno);
  }
  const bool started = training->Start();
  EXPECT_EQ(umount2(root.c_str(), MNT_DETACH), 0);  // its files are still removed if the rest fails
  ASSERT_TRUE(started);
  ExpectServingWithoutJobs(training, why);
}

// A volume that was not mounted.  Workers that serve and train serve on, too.
TEST(TrainingTest, ACheckpointRootThatIsGoneDisablesJobsAndServingGoesOn) {
  for (const bool on_serving : {false, true}) {
    SCOPED_TRACE(on_serving ? "--train_on_serving" : "training workers of their own");
    TrainingServer training(1,
                            on_serving ? std::vector<std::string>{"--train_on_serving"} : std::vector<std::string>());
    fs::remove_all(training.root() / "checkpoints");
    ASSERT_TRUE(training.Start());
    ExpectServingWithoutJobs(&training, "the checkpoint root: No such file or directory");
  }
}

TEST(TrainingTest, ACheckpointRootThatMayNotBeWrittenDisablesJobsAndServingGoesOn) {
  TrainingServer training(1);
  const fs::path root = training.root() / "checkpoints";
  fs::permissions(root, fs::perms::owner_read | fs::perms::owner_exec);
  // Processes that this thread starts must obey permissions, even as root.
  std::thread without_override([&] {
    if (geteuid() == 0 && prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0) GTEST_SKIP() << std::strerror(errno);
    ASSERT_TRUE(training.Start());
    ExpectServingWithoutJobs(&training, "jobs.sqlite: unable to open database file");
  });
  without_override.join();
  fs::permissions(root, fs::perms::owner_all);
}

TEST(TrainingTest, ACheckpointRootThatIsReadOnlyDisablesJobsAndServingGoesOn) {
  TrainingServer training;
  StartBesideRoot(&training, MountReadOnly, "jobs.sqlite: ");
}

TEST(TrainingTest, ACheckpointRootThatDoesNotAnswerDisablesJobsAndServingGoesOn) {
  TrainingServer training;
  StartBesideRoot(&training, MountDead, "Transport endpoint is not connected");
}

// Their workers serve, too.
TEST(TrainingTest, ACheckpointRootThatDoesNotAnswerEndsNoWorkerThatServes) {
  TrainingServer training(1, {"--train_on_serving"});
  StartBesideRoot(&training, MountDead, "Transport endpoint is not connected");
}

// The workers' own parser says so, not hours later when the job's turn has come.
TEST(TrainingTest, WhatNoWorkerTrainsIsRefusedWhenItIsSubmitted) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  std::stringstream text;
  text << std::ifstream(training.root() / "checkpoints/tiny/config.json").rdbuf();
  const nlohmann::json good = nlohmann::json::parse(text.str());
  struct Case {
    std::string name;
    std::function<void(nlohmann::json*)> spoil;
    std::string message;
  };
  const Case cases[] = {
      {"top_k", [](auto* c) { (*c)["num_experts_per_tok"] = 1000; }, "num_experts_per_tok"},
      {"activation", [](auto* c) { (*c)["hidden_act"] = "sine"; }, "unknown activation \"sine\""},
      {"rope",
       [](auto* c) {
         (*c)["rope_scaling"] = {{"rope_type", "spiral"}, {"factor", 2.0}};
       },
       "spiral"},
      {"quantized",
       [](auto* c) {
         (*c)["quantization_config"] = {{"quant_method", "awq"}};
       },
       "training from quantized weights (awq) is not supported"},
  };
  for (const Case& each : cases) {
    nlohmann::json config = good;
    each.spoil(&config);
    std::filesystem::create_directories(training.root() / "checkpoints" / each.name);
    for (const auto& file : fs::directory_iterator(training.root() / "checkpoints/tiny")) {
      fs::copy(file.path(), training.root() / "checkpoints" / each.name / file.path().filename());
    }
    std::ofstream(training.root() / "checkpoints" / each.name / "config.json") << config.dump();
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_architecture(each.name);
    const absl::Status status = training.Submit(spec).status();
    EXPECT_FALSE(status.ok()) << each.name << " was taken";
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message)) << each.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("spec.architecture: ")) << each.name;
  }
}

TEST(TrainingTest, WeightsAndMemoryAreCheckedWhenAJobIsSubmitted) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  fs::copy(training.root() / "checkpoints/demo", training.root() / "checkpoints/deeper");
  std::stringstream text;
  text << std::ifstream(training.root() / "checkpoints/demo/config.json").rdbuf();
  nlohmann::json config = nlohmann::json::parse(text.str());
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() + 1;
  std::ofstream(training.root() / "checkpoints/deeper/config.json") << config.dump();
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_architecture();
  spec.set_base_checkpoint("deeper");
  const absl::Status missing = training.Submit(spec).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("spec.base_checkpoint: \"deeper\": "));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("missing"));
  fs::copy(training.root() / "checkpoints/tiny", training.root() / "checkpoints/deepest");
  std::stringstream tiny;
  tiny << std::ifstream(training.root() / "checkpoints/tiny/config.json").rdbuf();
  config = nlohmann::json::parse(tiny.str());
  config["num_hidden_layers"] = 1024;
  std::ofstream(training.root() / "checkpoints/deepest/config.json") << config.dump();
  v1::JobSpec large = TrainingServer::TinySpec();
  large.set_architecture("deepest");
  large.set_batch_sequences(1 << 16);
  const absl::Status memory = training.Submit(large).status();
  EXPECT_EQ(memory.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(memory.message()),
              testing::AllOf(HasSubstr("spec: training needs at least "), HasSubstr("most are activations: ")));
}

TEST(TrainingTest, CancelledItStopsAndItsWorkersTrainTheNext) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec endless = TrainingServer::TinySpec();
  endless.set_steps(1'000'000);
  endless.mutable_checkpoints()->set_every_steps(1000);
  const auto submitted = training.Submit(endless);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const auto next = training.Submit(TrainingServer::TinySpec());
  ASSERT_TRUE(next.ok()) << next.status();
  training.WaitFor(submitted->id(), [](const v1::Job& job) { return job.progress().step() >= 3; });
  // It packs its text meanwhile, then waits.
  const v1::Job waits = training.WaitFor(next->id(), [](const v1::Job& job) {
    return job.state() == v1::JOB_STATE_PENDING && job.note() == "waits for workers: 0 of 2 are free";
  });
  EXPECT_EQ(waits.state(), v1::JOB_STATE_PENDING) << waits.DebugString();
  EXPECT_EQ(waits.note(), "waits for workers: 0 of 2 are free");
  EXPECT_EQ(waits.attempt(), 0);
  ASSERT_TRUE(training.Cancel(submitted->id()).ok());
  const v1::Job cancelled = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(cancelled.state(), v1::JOB_STATE_CANCELLED);
  // All that was trained is kept.
  EXPECT_GE(cancelled.checkpoint().step(), 3) << cancelled.DebugString();
  EXPECT_EQ(cancelled.checkpoint().step(), cancelled.progress().step());
  EXPECT_TRUE(fs::exists(training.root() / "checkpoints" / cancelled.checkpoint().folder() / "MANIFEST.json"));
  EXPECT_THAT(cancelled.changes(cancelled.changes_size() - 1).reason(),
              HasSubstr(absl::StrCat("saved at step ", cancelled.checkpoint().step())));
  const v1::Job job = training.WaitUntilIn(next->id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
}

TEST(TrainingTest, TheServerServesBesideATrainingJob) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  const StreamSeen before = Generate(training.server()->client(), TextRequest("The sea", 16));
  ASSERT_TRUE(before.ok()) << before.end;
  const auto submitted = training.Submit(TrainingServer::TinySpec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  training.WaitFor(submitted->id(), [](const v1::Job& job) { return job.progress().step() >= 1; });
  const StreamSeen beside = Generate(training.server()->client(), TextRequest("The sea", 16));
  ASSERT_TRUE(beside.ok()) << beside.end;
  EXPECT_EQ(beside.choices.at(0).token_ids, before.choices.at(0).token_ids);
  EXPECT_EQ(training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED).state(), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace switchyard
