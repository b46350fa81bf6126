// Workers that die or stop while streams run: the streams go on with the next group, or end with a reason if they are
// to; readiness says so, and all is well again.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/fault/ready_watch.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

constexpr absl::Duration kEndLimit = absl::Seconds(2);
constexpr absl::Duration kReadyLimit = absl::Seconds(60);

// Long streams that have all begun.
class Streams {
 public:
  Streams(client::Client& client, int count)
      : seen_(static_cast<size_t>(count)), ended_(static_cast<size_t>(count), absl::InfiniteFuture()) {
    for (size_t i = 0; i < seen_.size(); ++i) {
      streams_.push_back(
          client.StartGenerate(TextRequest("The", 900), {.on_message =
                                                             [this, i](const v1::GenerateResponse& message) {
                                                               absl::MutexLock lock(&mu_);
                                                               if (seen_[i].choices.empty()) ++begun_;
                                                               seen_[i].Add(message);
                                                             },
                                                         .on_done =
                                                             [this, i](const absl::Status&) {
                                                               absl::MutexLock lock(&mu_);
                                                               ended_[i] = absl::Now();
                                                             }}));
    }
  }
  std::string Message(size_t stream) { return client::Describe(streams_[stream]->Wait()).message; }
  bool WaitBegun() {
    absl::MutexLock lock(&mu_);
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return begun_ == seen_.size(); };
    return mu_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60));
  }
  bool AllEnded() {
    absl::MutexLock lock(&mu_);
    return std::count(ended_.begin(), ended_.end(), absl::InfiniteFuture()) == 0;
  }
  void ExpectWhole(size_t tokens) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      const absl::Status end = streams_[i]->Wait();
      EXPECT_TRUE(end.ok()) << end;
      absl::MutexLock lock(&mu_);
      EXPECT_EQ(seen_[i].fault, "");
      EXPECT_EQ(seen_[i].choices.at(0).token_ids.size(), tokens);
    }
  }
  void ExpectLost(absl::Time since) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      const absl::Status end = streams_[i]->Wait();
      EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
      EXPECT_EQ(client::Describe(end).reason, "WORKER_LOST") << end;
      EXPECT_GT(client::Describe(end).retry_after, absl::ZeroDuration());
      EXPECT_THAT(client::Describe(end).message,
                  testing::Not(testing::ContainsRegex("[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+|/")))
          << "no addresses, no paths";
      absl::MutexLock lock(&mu_);
      EXPECT_EQ(seen_[i].fault, "");
      EXPECT_LT(ended_[i] - since, kEndLimit) << "stream " << i << " hung";
    }
  }

 private:
  absl::Mutex mu_;
  std::vector<StreamSeen> seen_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Time> ended_ ABSL_GUARDED_BY(mu_);
  size_t begun_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<client::GenerateStream>> streams_;  // last: their callbacks use what is above
};

class WorkerFaultTest : public testing::Test {
 protected:
  void SetUp() override { StartServer({}); }
  void StartServer(const std::vector<std::string>& flags) {
    server_ = TestServer::Start({.model = kDemoModel, .workers = 2, .flags = flags});
    ASSERT_NE(server_, nullptr);
    before_ = Generate(server_->client(), TextRequest("In the beginning", 32));
    ASSERT_TRUE(before_.ok()) << before_.end;
  }

  // Sends `signal` to the worker of `rank` under four streams, and expects the whole course of events.
  void Break(int rank, int signal, bool fails = false) {
    ReadyWatch watch(server_->client().channel());
    Streams streams(server_->client(), 4);
    ASSERT_TRUE(streams.WaitBegun());
    const std::vector<pid_t> pids = server_->WorkerPids();
    ASSERT_EQ(pids.size(), 2u);
    const auto epoch = server_->client().GetLoad()->group_epoch();
    const absl::Time start = absl::Now();
    ASSERT_EQ(kill(pids[static_cast<size_t>(rank)], signal), 0);
    if (fails) streams.ExpectLost(start);
    const absl::Time unready = watch.WaitFor(false, start, kEndLimit);
    EXPECT_LT(unready - start, kEndLimit) << "readiness stayed true";
    const absl::Time ready = watch.WaitFor(true, unready, kReadyLimit);
    ASSERT_LT(ready, absl::InfiniteFuture()) << "never ready again";
    EXPECT_GT(server_->client().GetLoad()->group_epoch(), epoch);
    EXPECT_NE(server_->WorkerPids(), pids);
    if (!fails) streams.ExpectWhole(900);
    EXPECT_TRUE(server_->WaitIdle());
    const StreamSeen after = Generate(server_->client(), TextRequest("In the beginning", 32));
    ASSERT_TRUE(after.ok()) << after.end;
    EXPECT_EQ(after.choices[0].token_ids, before_.choices[0].token_ids);
  }

  // Under four streams.
  void PauseServer(absl::Duration pause) {
    Streams streams(server_->client(), 4);
    ASSERT_TRUE(streams.WaitBegun());
    const std::vector<pid_t> pids = server_->WorkerPids();
    const auto epoch = server_->client().GetLoad()->group_epoch();
    server_->process().Signal(SIGSTOP);
    absl::SleepFor(pause);  // the fault itself, no wait for something
    EXPECT_FALSE(streams.AllEnded()) << "nothing ran while it stood";
    server_->process().Signal(SIGCONT);
    streams.ExpectWhole(900);
    EXPECT_EQ(server_->WorkerPids(), pids);
    EXPECT_EQ(server_->client().GetLoad()->group_epoch(), epoch);
    EXPECT_THAT(server_->process().Output(), testing::Not(testing::HasSubstr("is lost")));
  }

  std::unique_ptr<TestServer> server_;
  StreamSeen before_;
};

TEST_F(WorkerFaultTest, SigkillOfEitherRank) {
  Break(1, SIGKILL);
  if (!HasFailure()) Break(0, SIGKILL);
}

TEST_F(WorkerFaultTest, RequestsThatAreToFailEndWithinTwoSeconds) {
  server_.reset();
  ASSERT_NO_FATAL_FAILURE(StartServer({"--on_worker_loss=fail"}));
  Break(1, SIGKILL, /*fails=*/true);
  if (!HasFailure()) Break(0, SIGSTOP, /*fails=*/true);
}

// The client's error has rank and reason; the log also has the process.
TEST(WorkerLostTest, TheMessageNamesRankAndReasonTheLogTheProcess) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {"--on_worker_loss=fail"}});
  ASSERT_NE(server, nullptr);
  Streams streams(server->client(), 1);
  ASSERT_TRUE(streams.WaitBegun());
  const pid_t worker = server->WorkerPids().at(0);
  const std::string pid = absl::StrCat(worker);
  const absl::Time start = absl::Now();
  ASSERT_EQ(kill(worker, SIGKILL), 0);
  streams.ExpectLost(start);
  const std::string message = streams.Message(0);
  EXPECT_THAT(message, testing::HasSubstr("worker of rank 0 was lost: "));
  EXPECT_THAT(message,
              testing::AnyOf(testing::HasSubstr("process ended with signal 9"), testing::HasSubstr("its link ended")));
  EXPECT_THAT(message, testing::Not(testing::AnyOf(testing::HasSubstr("pid"), testing::HasSubstr(pid))));
  EXPECT_TRUE(server->process().WaitForOutput(absl::StrCat("(rank 0, pid ", pid, ") is lost"), kEndLimit));
}

// A stopped worker answers and closes nothing, so the server can only notice its silence.
TEST_F(WorkerFaultTest, SigstopIsFenced) {
  Break(1, SIGSTOP);
  if (!HasFailure()) Break(0, SIGSTOP);
}

// A server that is stopped for longer than it waits for heartbeats: these wait in its sockets.
TEST_F(WorkerFaultTest, TheServersOwnPauseEndsNoStream) { PauseServer(absl::Seconds(4)); }

// For longer than a flood holds up its answers to pings on few cores; clients wait for 30 s.
TEST_F(WorkerFaultTest, ALongPauseOfTheServerEndsNoLink) { PauseServer(absl::Seconds(12)); }

TEST_F(WorkerFaultTest, RequestsThatComeWhileItIsDownWait) {
  for (pid_t pid : server_->WorkerPids()) ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(server_->WaitReady(false, kEndLimit));
  const StreamSeen seen = Generate(server_->client(), TextRequest("In the beginning", 32));
  ASSERT_TRUE(seen.ok()) << seen.end;
  EXPECT_EQ(seen.choices[0].token_ids, before_.choices[0].token_ids);
  EXPECT_TRUE(*server_->client().IsServing("")) << "alive all the while";
  EXPECT_TRUE(server_->WaitReady(true, kReadyLimit));
  EXPECT_TRUE(Generate(server_->client(), TextRequest("x", 4)).ok());
}

// A worker from elsewhere that is stopped, fenced and continued: its late messages belong to an old epoch, and it joins
// the next one.
TEST(ZombieTest, AFencedWorkerThatWakesUpJoinsANewEpoch) {
  const std::string token = testing::TempDir() + absl::StrCat("switchyard-token-", getpid());
  std::ofstream(token) << "a token of more than sixteen bytes";
  ASSERT_EQ(chmod(token.c_str(), 0600), 0);
  const auto server = TestServer::Start(
      {.model = kDemoModel, .workers = 1, .flags = {"--workers=2", "--join_token_file=" + token}, .wait_ready = false});
  ASSERT_NE(server, nullptr);
  const auto worker =
      Process::Start({Binary("switchyard-worker"), "--server=" + server->worker_address(),
                      absl::StrCat("--model=", kDemoModel), "--threads=1", "--join_token_file=" + token});
  ASSERT_NE(worker, nullptr);
  ASSERT_TRUE(server->WaitReady(true, kReadyLimit)) << server->process().Output() << worker->Output();
  const StreamSeen before = Generate(server->client(), TextRequest("In the beginning", 32));
  ASSERT_TRUE(before.ok()) << before.end;
  const auto epoch = server->client().GetLoad()->group_epoch();
  Streams streams(server->client(), 4);
  ASSERT_TRUE(streams.WaitBegun());
  worker->Signal(SIGSTOP);
  // 1.5 s of the server's own running time (GroupTest counts that), so longer where it waits for a core.
  ASSERT_TRUE(server->WaitReady(false, kReadyLimit)) << "the group is not whole";
  worker->Signal(SIGCONT);
  ASSERT_TRUE(server->WaitReady(true, kReadyLimit)) << server->process().Output() << worker->Output();
  EXPECT_GT(server->client().GetLoad()->group_epoch(), epoch);
  streams.ExpectWhole(900);
  const StreamSeen after = Generate(server->client(), TextRequest("In the beginning", 32));
  ASSERT_TRUE(after.ok()) << after.end;
  EXPECT_EQ(after.choices[0].token_ids, before.choices[0].token_ids);
  EXPECT_TRUE(server->WaitIdle());
  unlink(token.c_str());
}

// Without the token nobody joins.
TEST(StrangerTest, AWorkerWithAWrongTokenIsRefused) {
  const std::string token = testing::TempDir() + absl::StrCat("switchyard-wrong-token-", getpid());
  std::ofstream(token) << "this is not the token that was drawn";
  ASSERT_EQ(chmod(token.c_str(), 0600), 0);
  const model::TempDir data, checkpoints;
  // A training worker from elsewhere may come, so there is a port for it.
  const auto server = TestServer::Start(
      {.model = kDemoModel,
       .workers = 1,
       .flags = {"--train_workers=1", "--dataset_root=" + data.path(), "--checkpoint_root=" + checkpoints.path()}});
  ASSERT_NE(server, nullptr);
  const auto worker = Process::Start({Binary("switchyard-worker"), "--server=" + server->worker_address(),
                                      absl::StrCat("--model=", kDemoModel), "--join_token_file=" + token});
  ASSERT_NE(worker, nullptr);
  EXPECT_EQ(worker->Wait(absl::Seconds(30)).value_or(-1), 2) << worker->Output();
  EXPECT_THAT(worker->Output(), testing::HasSubstr("token"));
  EXPECT_TRUE(Generate(server->client(), TextRequest("x", 4)).ok()) << "others are unharmed";
  unlink(token.c_str());
}

// A worker with another model that registers first neither ends the server nor determines what it serves.
TEST(StrangerTest, AWorkerOfAnotherModelThatIsFirstHarmsNobody) {
  const std::string base = testing::TempDir() + absl::StrCat("switchyard-late-", getpid());
  const std::string program = base + ".sh", door = base + ".fifo";
  ASSERT_EQ(mkfifo(door.c_str(), 0600), 0);
  // The server's own worker starts when someone opens the FIFO to write.
  std::ofstream(program) << "#!/bin/sh\n: <" << door << "\nexec " << Binary("switchyard-worker") << " \"$@\"\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  const auto server = TestServer::Start(
      {.model = kDemoModel, .workers = 1, .flags = {"--workers=2", "--worker_binary=" + program}, .wait_ready = false});
  ASSERT_NE(server, nullptr);
  const auto start = [&](const char* model) {
    return Process::Start({Binary("switchyard-worker"), "--server=" + server->worker_address(),
                           absl::StrCat("--model=", model), "--threads=1"});
  };
  const auto wrong = start(kTinyModel);
  ASSERT_NE(wrong, nullptr);
  EXPECT_TRUE(wrong->WaitForOutput("they come first", absl::Seconds(30))) << wrong->Output();
  int opened = -1;
  EXPECT_TRUE(WaitUntil([&] { return (opened = open(door.c_str(), O_WRONLY | O_NONBLOCK)) >= 0; }, absl::Seconds(30)));
  close(opened);
  EXPECT_EQ(wrong->Wait(absl::Seconds(60)).value_or(-1), 2) << wrong->Output();
  EXPECT_THAT(wrong->Output(), testing::HasSubstr("give the worker the same --model"));
  const auto right = start(kDemoModel);
  ASSERT_NE(right, nullptr);
  EXPECT_TRUE(server->WaitReady(true, kReadyLimit)) << server->process().Output() << right->Output();
  EXPECT_TRUE(Generate(server->client(), TextRequest("x", 4)).ok());
  unlink(program.c_str());
  unlink(door.c_str());
}

}  // namespace
}  // namespace switchyard
