// The server's own workers as processes: started again when they die, not when they refuse, gone when asked.
//
// The workers are shells that run a line of script; waits poll with a deadline.
#include "server/fleet/local_fleet.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

constexpr char kSleeps[] = "exec sleep 1000";

bool Eventually(const std::function<bool()>& holds) {
  for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end;
       absl::SleepFor(absl::Milliseconds(5))) {
    if (holds()) return true;
  }
  return false;
}

class LocalFleetTest : public testing::Test {
 protected:
  std::unique_ptr<LocalFleet> Make(int count, const std::string& script, const std::string& binary = "/bin/sh") {
    LocalFleet::Options options;
    options.binary = binary;
    options.count = count;
    options.max_deaths_unfinalized = max_deaths_unfinalized_;
    options.args = [script](int index) {
      return std::vector<std::string>{"-c", script, "worker", absl::StrCat(index)};
    };
    options.on_fatal = [this](std::string text) {
      absl::MutexLock lock(&mu_);
      fatal_.push_back(std::move(text));
    };
    options.on_restart = [this] { ++restarts_seen_; };
    return std::make_unique<LocalFleet>(std::move(options));
  }
  std::vector<std::string> fatal() {
    absl::MutexLock lock(&mu_);
    return fatal_;
  }

  int max_deaths_unfinalized_ = 0;
  absl::Mutex mu_;
  std::vector<std::string> fatal_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> restarts_seen_ = 0;
};

TEST_F(LocalFleetTest, AKilledWorkerComesBackAndTheOthersStay) {
  auto fleet = Make(2, kSleeps);
  ASSERT_TRUE(fleet->Start().ok());
  const std::vector<pid_t> before = fleet->Pids();
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(kill(before[0], 0), 0);
  fleet->Kill(0, before[0]);
  EXPECT_TRUE(Eventually([&] { return fleet->Pids()[0] > 0 && fleet->Pids()[0] != before[0]; }));
  EXPECT_EQ(fleet->Pids()[1], before[1]);
  EXPECT_EQ(fleet->restarts(), 1);
  EXPECT_EQ(restarts_seen_, 1);
  EXPECT_NE(kill(before[0], 0), 0) << "reaped: no zombie stays";
  EXPECT_TRUE(fatal().empty());
}

TEST_F(LocalFleetTest, ItIsKnownHowAWorkerEnded) {
  auto fleet = Make(1, kSleeps);
  ASSERT_TRUE(fleet->Start().ok());
  const pid_t first = fleet->Pids()[0];
  EXPECT_EQ(fleet->EndOf(0, first), "") << "it runs";
  ASSERT_EQ(kill(first, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return !fleet->EndOf(0, first).empty(); }));
  EXPECT_EQ(fleet->EndOf(0, first), "signal 9 (Killed)");
  EXPECT_TRUE(Eventually([&] { return fleet->Pids()[0] > 0 && fleet->Pids()[0] != first; }));
  EXPECT_EQ(fleet->EndOf(0, first), "signal 9 (Killed)") << "also when the next one runs";
  EXPECT_EQ(fleet->EndOf(0, fleet->Pids()[0]), "");
  EXPECT_EQ(fleet->EndOf(1, first), "") << "there is no such worker";
}

TEST_F(LocalFleetTest, AnExitCodeIsKnownBeforeAndAfterTheWatcherTookIt) {
  const std::string may_end = absl::StrCat(testing::TempDir(), "may_end.", getpid());
  auto fleet = Make(1, absl::StrCat("until [ -e ", may_end, " ]; do sleep 0.01; done; exit 3"));
  ASSERT_TRUE(fleet->Start().ok());
  const pid_t first = fleet->Pids()[0];
  ASSERT_TRUE(std::ofstream(may_end).is_open());
  EXPECT_TRUE(Eventually([&] { return fleet->EndOf(0, first) == "exit code 3"; }));
  unlink(may_end.c_str());
}

TEST_F(LocalFleetTest, KillMeansThatProcessOnly) {
  auto fleet = Make(1, kSleeps);
  ASSERT_TRUE(fleet->Start().ok());
  const pid_t first = fleet->Pids()[0];
  fleet->Kill(0, first + 100000);
  fleet->Kill(1, first);
  fleet->Kill(-1, first);
  EXPECT_EQ(waitpid(first, nullptr, WNOHANG), 0) << "it lives";
  fleet->Kill(0, first);
  EXPECT_TRUE(Eventually([&] { return fleet->Pids()[0] > 0 && fleet->Pids()[0] != first; }));
}

TEST_F(LocalFleetTest, OneThatIsStoppedIsReplaced) {
  auto fleet = Make(2, kSleeps);
  ASSERT_TRUE(fleet->Start().ok());
  const std::vector<pid_t> before = fleet->Pids();
  kill(before[1], SIGSTOP);
  kill(before[1], SIGCONT);  // a short stop does no harm
  kill(before[0], SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return fleet->Pids()[0] > 0 && fleet->Pids()[0] != before[0]; }));
  EXPECT_EQ(fleet->EndOf(0, before[0]), "signal 9 (Killed)");
  EXPECT_EQ(fleet->Pids()[1], before[1]);
}

TEST_F(LocalFleetTest, CodeTwoIsFatalOnceAndNotTriedAgain) {
  auto fleet = Make(2, "[ $1 = 0 ] && exit 2; exec sleep 1000");
  // sh -c takes the name as $0 and the index as $1.
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return fatal().size() == 1; }));
  EXPECT_THAT(fatal()[0], HasSubstr("worker 0 (rank 0) refused to start (exit code 2"));
  const pid_t other = fleet->Pids()[1];
  fleet->Kill(1, other);  // the refused worker could have restarted meanwhile
  EXPECT_TRUE(Eventually([&] { return fleet->Pids()[1] > 0 && fleet->Pids()[1] != other; }));
  EXPECT_EQ(fleet->Pids()[0], -1);
  EXPECT_EQ(fatal().size(), 1u);
  EXPECT_EQ(fleet->restarts(), 1);
}

TEST_F(LocalFleetTest, AfterTheModelWasServedARefusalIsTriedAgainMoreSlowly) {
  auto fleet = Make(1, "exit 2");
  fleet->Finalize();
  const absl::Time start = absl::Now();
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return fleet->restarts() >= 3; }));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100 + 200 + 400));
  EXPECT_TRUE(fatal().empty());
  fleet.reset();
  fleet = Make(1, "", "/nowhere/switchyard-worker");  // as if the program were being replaced
  fleet->Finalize();
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return fleet->restarts() >= 1; }));
  EXPECT_TRUE(fatal().empty());
}

TEST_F(LocalFleetTest, OtherCodesAreTriedAgainMoreSlowly) {
  auto fleet = Make(1, "exit 1");
  const absl::Time start = absl::Now();
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return fleet->restarts() >= 3; }));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100 + 200 + 400)) << "each young death doubles the pause";
  EXPECT_TRUE(fatal().empty());
}

TEST_F(LocalFleetTest, OneThatNeverComesUpIsGivenUpAndNamed) {
  max_deaths_unfinalized_ = 3;
  auto fleet = Make(2, "[ $1 = 0 ] && exec sleep 1000; kill -9 $$");
  const absl::Time start = absl::Now();
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return !fatal().empty(); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  EXPECT_EQ(fatal()[0], "worker 1 (rank 1) ended 3 times before the group formed, at last with signal 9 (Killed)");
  EXPECT_EQ(fleet->restarts(), 2);
}

TEST_F(LocalFleetTest, OnceFinalizedNothingIsGivenUp) {
  max_deaths_unfinalized_ = 2;
  for (const char* code : {"exit 1", "exit 2"}) {
    auto fleet = Make(1, code);
    fleet->Finalize();
    ASSERT_TRUE(fleet->Start().ok());
    EXPECT_TRUE(Eventually([&] { return fleet->restarts() >= 3; })) << code;
    EXPECT_TRUE(fatal().empty()) << fatal()[0];
  }
}

TEST_F(LocalFleetTest, AMissingProgramIsFatal) {
  auto fleet = Make(1, "", "/nowhere/switchyard-worker");
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return !fatal().empty(); }));
  EXPECT_EQ(fatal()[0], "cannot run /nowhere/switchyard-worker");
  EXPECT_EQ(fleet->restarts(), 0);
}

TEST_F(LocalFleetTest, StopAsksThenKills) {
  int ready[2], never[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(never), 0);
  ASSERT_EQ(dup2(ready[1], 8), 8);  // shells know descriptors of one digit
  ASSERT_EQ(dup2(never[0], 9), 9);
  // Worker 0 ends when asked, worker 1 ignores SIGTERM.  Both write when they are set up, then block in a read.
  auto fleet = Make(2, "if [ $1 = 1 ]; then trap '' TERM; fi; echo r >&8; read x <&9");
  ASSERT_TRUE(fleet->Start().ok());
  const std::vector<pid_t> pids = fleet->Pids();
  char buffer[4];
  ASSERT_EQ(read(ready[0], buffer, 2), 2);
  ASSERT_EQ(read(ready[0], buffer, 2), 2);
  fleet->Stop(absl::Milliseconds(200));
  EXPECT_EQ(fleet->Pids(), (std::vector<pid_t>{-1, -1}));
  for (pid_t pid : pids) EXPECT_NE(kill(pid, 0), 0);
  EXPECT_EQ(fleet->restarts(), 0);
  fleet->Stop(absl::Seconds(1));  // a second time does nothing
  for (int fd : {ready[0], ready[1], never[0], never[1], 8, 9}) close(fd);
}

TEST_F(LocalFleetTest, WorkersDieWithTheServer) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // this process reaps the orphans
  int pipe_fds[2], ready[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(dup2(ready[1], 8), 8);
  const pid_t server = fork();
  ASSERT_GE(server, 0);
  if (server == 0) {
    auto fleet = Make(1, absl::StrCat("echo r >&8; ", kSleeps));
    const bool ok = fleet->Start().ok();
    const pid_t worker = ok ? fleet->Pids()[0] : -1;
    (void)!write(pipe_fds[1], &worker, sizeof(worker));
    for (;;) pause();
  }
  pid_t worker = -1;
  ASSERT_EQ(read(pipe_fds[0], &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  ASSERT_GT(worker, 0);
  char buffer[2];
  ASSERT_EQ(read(ready[0], buffer, 2), 2) << "its program runs";
  kill(server, SIGKILL);
  EXPECT_EQ(waitpid(server, nullptr, 0), server);
  int status = 0;
  EXPECT_TRUE(Eventually([&] { return waitpid(worker, &status, WNOHANG) == worker; }));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  for (int fd : {pipe_fds[0], pipe_fds[1], ready[0], ready[1], 8}) close(fd);
}

// A pod's termination message is the last line of the log, so that must have the cause.
TEST_F(LocalFleetTest, ARefusalCarriesTheWorkersMessage) {
  auto fleet = Make(1, "for a; do case $a in --refusal_file=*) echo 'config.json: no' >${a#*=};; esac; done; exit 2");
  ASSERT_TRUE(fleet->Start().ok());
  EXPECT_TRUE(Eventually([&] { return fatal().size() == 1; }));
  EXPECT_EQ(fatal()[0], "worker 0 (rank 0) refused to start: config.json: no");
}

}  // namespace
}  // namespace switchyard::server
