// Kills workers and the server of training jobs at random moments: every job goes on from its last checkpoint and ends
// with the bits of an undisturbed run.
//
//   fault_training_kills [--kills=N] [--seed=N] [--packing=NAME] [--granularity=NAME] [--offload] [--zero]
// 6 kills by default, for CI; a seed repeats targets and pauses.  packing: the spec's expert_packing, "" by default;
// granularity: 1 by default.  With packing trials, on four workers, how experts are packed follows from what was
// measured, and so do chunks with granularity auto: there the undisturbed run is a job that is given packing.log and
// chunks.log of the disturbed one.  offload: masters and moments of the disturbed ones' experts are in files.  zero: in
// all runs dense state is sharded.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"
#include "tests/fault/own_flags.h"

namespace switchyard {
namespace {

int g_kills = 6;  // set once, by main
uint64_t g_seed = 1;
std::string g_packing;
std::string g_granularity = "1";
bool g_offload = false;
bool g_zero = false;

constexpr char kPackingLog[] = "packing.log", kChunksLog[] = "chunks.log";

bool Packs() { return g_packing == "trials"; }
// Files of a job's folder: what it has decided by times.
std::vector<std::string> Journals() {
  std::vector<std::string> names;
  if (Packs()) names.emplace_back(kPackingLog);
  if (g_granularity == "auto") names.emplace_back(kChunksLog);
  return names;
}

class TrainingKills : public testing::Test {
 protected:
  v1::JobSpec Spec() const {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_steps(300);
    spec.mutable_checkpoints()->set_every_steps(20);
    spec.mutable_communication()->set_expert_packing(g_packing);
    spec.mutable_communication()->set_granularity(g_granularity);
    spec.set_zero(g_zero ? 1 : 0);
    if (Packs()) {
      spec.set_workers(4);
      spec.set_steps(120);
      spec.mutable_communication()->set_piece_bytes(16384);
    }
    return spec;
  }
  static v1::JobSpec Disturbed(v1::JobSpec spec) {
    if (g_offload) spec.set_offload(v1::OFFLOAD_POLICY_ALWAYS);
    return spec;
  }
  v1::Job Finish(const std::string& id) {
    v1::Job job = training_.WaitUntilIn(id, v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    return job;
  }
  // Texts of a job's journals, by their names.
  std::map<std::string, std::string> DecisionsOf(const std::string& id) {
    std::map<std::string, std::string> texts;
    for (const std::string& name : Journals()) {
      std::ifstream in(training_.job_folder(id) / name, std::ios::binary);
      texts[name] = std::string((std::istreambuf_iterator<char>(in)), {});
    }
    return texts;
  }
  // An undisturbed run of the same schedule.
  v1::Job RunUndisturbed() {
    const auto submitted = training_.Submit(Spec());
    if (submitted.ok()) return Finish(submitted->id());
    ADD_FAILURE() << submitted.status();
    return {};
  }
  // … that decides as `job` did.  It waits behind another job until its journals are in its folder.
  v1::Job RunLike(const v1::Job& job) {
    const std::map<std::string, std::string> decided = DecisionsOf(job.id());
    for (const auto& [name, text] : decided) {
      EXPECT_NE(text.find(name == kPackingLog ? "reason=grows" : "reason="), std::string::npos)
          << (name == kPackingLog ? "experts were never packed: " : "nothing was decided: ") << text;
      std::cout << text << std::flush;
    }
    v1::JobSpec endless = Spec();
    endless.set_steps(1'000'000);
    const auto before = training_.Submit(endless);
    const auto submitted = training_.Submit(Spec());
    if (!before.ok() || !submitted.ok()) {
      ADD_FAILURE() << before.status() << submitted.status();
      return {};
    }
    std::filesystem::create_directories(training_.job_folder(submitted->id()));
    for (const auto& [name, text] : decided) {
      std::ofstream(training_.job_folder(submitted->id()) / name, std::ios::binary) << text;
    }
    EXPECT_EQ(training_.Get(submitted->id())->attempt(), 0) << "it began before its journals were there";
    EXPECT_TRUE(training_.Cancel(before->id()).ok());
    const v1::Job like = Finish(submitted->id());
    EXPECT_EQ(DecisionsOf(submitted->id()), decided) << "it decided something by itself";
    return like;
  }
  // Returns a checkpoint's files, without those that record the number of runs.
  std::map<std::string, std::string> ContentsOf(const v1::Job& job) {
    return TrainingServer::Contents(training_.root() / "checkpoints" / job.checkpoint().folder());
  }
  // Kills one of the workers or the server, which is then started again.
  void KillSomething() {
    const std::vector<pid_t> workers = training_.TrainWorkerPids();
    const size_t target = std::uniform_int_distribution<size_t>(0, Packs() ? 4 : 2)(random_);
    if (target < workers.size()) {
      std::cout << "kill " << ++kills_ << ": training worker, pid " << workers[target] << std::endl;
      kill(workers[target], SIGKILL);
      return;
    }
    std::cout << "kill " << ++kills_ << ": the server" << std::endl;
    training_.Kill();
    ASSERT_TRUE(training_.Start());
  }
  // Disturbs the job until it has ended.
  v1::Job Disturb(const std::string& id) {
    v1::Job job;
    for (;;) {
      const auto pause = std::chrono::milliseconds(std::uniform_int_distribution<int>(50, 2500)(random_));
      const bool ended = WaitUntil([&] { return Ended(id, &job); }, absl::FromChrono(pause));
      if (ended || kills_ >= g_kills) break;
      KillSomething();
      if (HasFatalFailure()) return job;
    }
    WaitUntil([&] { return Ended(id, &job); }, kJobLimit);
    return job;
  }
  bool Ended(const std::string& id, v1::Job* job) {
    if (absl::StatusOr<v1::Job> seen = training_.Get(id); seen.ok()) *job = *seen;
    return job->state() == v1::JOB_STATE_SUCCEEDED || job->state() == v1::JOB_STATE_FAILED;
  }

  // No files remain in that folder, as they are unnamed.
  TrainingServer training_{Packs() ? 4 : 2,
                           {absl::StrCat("--train_offload_dir=", std::filesystem::temp_directory_path().string())}};
  std::mt19937_64 random_{g_seed};
  int kills_ = 0;
};

TEST_F(TrainingKills, EveryJobEndsWithTheBitsOfAnUndisturbedRun) {
  ASSERT_TRUE(training_.Start());
  v1::Job whole;
  if (Journals().empty()) whole = RunUndisturbed();
  int jobs = 0;
  int64_t attempts = 0;
  while (kills_ < g_kills && !HasFailure()) {
    const auto submitted = training_.Submit(Disturbed(Spec()), absl::StrCat("job-", ++jobs));
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const v1::Job job = Disturb(submitted->id());
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    attempts += job.attempt();
    if (!Journals().empty()) whole = RunLike(job);
    ASSERT_FALSE(HasFailure());
    const std::map<std::string, std::string> wanted = ContentsOf(whole);
    ASSERT_FALSE(wanted.empty());
    EXPECT_EQ(job.progress().loss(), whole.progress().loss());
    EXPECT_EQ(job.progress().packing(), whole.progress().packing());
    EXPECT_EQ(job.progress().chunks(), whole.progress().chunks());
    EXPECT_TRUE(ContentsOf(job) == wanted) << "job " << jobs << " ended with other bits";
  }
  EXPECT_GT(attempts, jobs) << "no kill has disturbed a job";
  std::cout << kills_ << " kills, " << jobs << " jobs, " << attempts << " attempts" << std::endl;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;  // NOLINT
  const auto text = [](std::string* to) {
    return [to](absl::string_view value) {
      *to = std::string(value);
      return true;
    };
  };
  return RunWithFlags(argc, argv,
                      {{"--kills=", NumberFrom(1, &g_kills)},
                       {"--seed=", Seed(&g_seed)},
                       {"--packing=", text(&g_packing)},
                       {"--granularity=", text(&g_granularity)},
                       {"--offload",
                        [](absl::string_view value) {
                          g_offload = true;
                          return value.empty();
                        }},
                       {"--zero", [](absl::string_view value) {
                          g_zero = true;
                          return value.empty();
                        }}});
}
