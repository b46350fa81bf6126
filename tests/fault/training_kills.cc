// Kills workers and the server of training jobs at random moments: every job goes on from its last checkpoint and ends
// with the bits of an undisturbed run.
//
//   fault_training_kills [--kills=N] [--seed=N]       6 kills by default, for CI; a seed repeats targets and pauses
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

int g_kills = 6;  // set once, by main
uint64_t g_seed = 1;

class TrainingKills : public testing::Test {
 protected:
  v1::JobSpec Spec() const {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_steps(300);
    spec.mutable_checkpoints()->set_every_steps(20);
    return spec;
  }
  // A checkpoint's files, without their rank's number of runs.
  std::map<std::string, std::string> ContentsOf(const v1::Job& job) {
    return TrainingServer::Contents(training_.root() / "checkpoints" / job.checkpoint().folder());
  }
  // Kills one of the workers or the server, which is then started again.
  void KillSomething() {
    const std::vector<pid_t> workers = training_.TrainWorkerPids();
    const size_t target = std::uniform_int_distribution<size_t>(0, 2)(random_);
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

  TrainingServer training_;
  std::mt19937_64 random_{g_seed};
  int kills_ = 0;
};

TEST_F(TrainingKills, EveryJobEndsWithTheBitsOfAnUndisturbedRun) {
  ASSERT_TRUE(training_.Start());
  const auto undisturbed = training_.Submit(Spec());
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  const v1::Job whole = training_.WaitUntilIn(undisturbed->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(whole.state(), v1::JOB_STATE_SUCCEEDED) << whole.DebugString();
  const std::map<std::string, std::string> wanted = ContentsOf(whole);
  ASSERT_FALSE(wanted.empty());
  int jobs = 0;
  int64_t attempts = 0;
  while (kills_ < g_kills) {
    const auto submitted = training_.Submit(Spec(), absl::StrCat("job-", ++jobs));
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const v1::Job job = Disturb(submitted->id());
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    EXPECT_EQ(job.progress().loss(), whole.progress().loss());
    EXPECT_TRUE(ContentsOf(job) == wanted) << "job " << jobs << " ended with other bits";
    attempts += job.attempt();
  }
  EXPECT_GT(attempts, jobs) << "no kill has disturbed a job";
  std::cout << kills_ << " kills, " << jobs << " jobs, " << attempts << " attempts" << std::endl;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool ok = absl::ConsumePrefix(&arg, "--kills=")  ? absl::SimpleAtoi(arg, &switchyard::g_kills)
                    : absl::ConsumePrefix(&arg, "--seed=") ? absl::SimpleAtoi(arg, &switchyard::g_seed)
                                                           : false;
    if (ok) continue;
    std::cerr << "fault_training_kills: cannot take " << argv[i] << "; flags: --kills=N --seed=N\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
