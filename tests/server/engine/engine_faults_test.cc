// Workers that die, drains, stops, and many clients at once: nothing hangs, and every request is answered.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

constexpr char kBeyondContext[] =
    "--max_model_len=1001: the model's context is 1000 tokens (of a config.json by max_position_embeddings and "
    "rope_scaling)";

// Two tokens were emitted; the third, under way when the worker was lost, comes from the next group.
TEST_F(EngineTest, RunningRequestsOutliveTheirWorkers) {
  StartReady();
  worker->Allow(2);
  Reader running;
  Submit(running, "a", 5);
  worker->AwaitHeld();
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Connect(2);
  EXPECT_TRUE(running.End().ok()) << running.End();
  EXPECT_EQ(running.text(), "abcde");
  Finalize();
  EXPECT_EQ(engine->load().scheduler.outlived_losses, 1);
}

// Whoever loses its workers three times in a row, at last alone, was to blame.
TEST_F(EngineTest, ARequestThatKillsItsWorkersEndsAlone) {
  on_connect = [](ScriptedWorker* one) { one->Allow(0); };
  StartReady();
  Reader poisoned;
  Submit(poisoned, "a", 5);
  for (WorkerId id = 1; id <= 3; ++id) {
    if (id > 1) worker = Connect(id);
    worker->AwaitHeld();
    engine->links()->OnLinkLost(id, "its link ended");
    AwaitReady(false);
  }
  on_connect = nullptr;
  Connect(4);
  EXPECT_EQ(poisoned.End().code(), absl::StatusCode::kInternal) << poisoned.End();
  EXPECT_EQ(poisoned.Reason(), "KILLS_WORKERS");
  Reader next;
  Submit(next, "b", 5);
  EXPECT_TRUE(next.End().ok()) << next.End();
}

// Who is killed from outside says nothing of what it ran.
TEST_F(EngineTest, KilledWorkersMakeNoRequestASuspect) {
  end_of = "signal 9 (Killed)";
  on_connect = [](ScriptedWorker* one) { one->Allow(0); };
  StartReady();
  Reader reader;
  Submit(reader, "a", 5);
  for (WorkerId id = 1; id <= 6; ++id) {
    if (id > 1) worker = Connect(id);
    worker->AwaitHeld();
    engine->links()->OnLinkLost(id, "its link ended");
    AwaitReady(false);
  }
  on_connect = nullptr;
  Connect(7);
  EXPECT_TRUE(reader.End().ok()) << reader.End();
  EXPECT_EQ(reader.text(), "abcde");
}

TEST_F(EngineTest, ALostGroupEndsRunningRequestsAndKeepsTheQueue) {
  config.batching.max_losses = 0;
  config.batching.max_num_seqs = 1;
  StartReady();
  worker->Allow(0);
  Reader running, waiting;
  Submit(running, "a", 5);
  worker->AwaitHeld();
  Submit(waiting, "b", 5);
  Finalize();
  engine->links()->OnLinkLost(1, "its link ended");
  EXPECT_EQ(running.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(running.Reason(), "WORKER_LOST");
  EXPECT_THAT(std::string(running.End().message()), HasSubstr("its link ended"));
  AwaitReady(false);
  Finalize();
  EXPECT_FALSE(engine->load().ready);
  Connect(2);
  EXPECT_TRUE(waiting.End().ok());
  EXPECT_EQ(waiting.text(), "abcde");
  AwaitReady(true);
}

TEST_F(EngineTest, ArrivalsWhileTheGroupFormsAnewWaitForIt) {
  StartReady();
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Reader arrival;
  Submit(arrival, "c", 5);
  Finalize();
  EXPECT_FALSE(engine->load().ready);
  Connect(2);
  EXPECT_TRUE(arrival.End().ok()) << arrival.End();
  EXPECT_EQ(arrival.text(), "abcde");
}

TEST_F(EngineTest, ArrivalsWhileTheGroupFormsAnewAreBoundByTheQueueAndTheirDeadlines) {
  config.batching.max_queue = 1;
  end_of = "signal 9 (Killed)";
  StartReady();
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Reader waiting, refused, next;
  const uint64_t handle = Submit(waiting, "a", 5);
  Submit(refused, "b", 5);
  EXPECT_EQ(refused.Reason(), "QUEUE_FULL");
  engine->Cancel(handle, absl::CancelledError("the client cancelled"));
  EXPECT_EQ(waiting.End().code(), absl::StatusCode::kCancelled);
  auto late = Request("c", 5);
  late->deadline = MonotonicNow() + absl::Milliseconds(30);
  Submit(next, std::move(late));
  EXPECT_EQ(next.End().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(next.End().message()),
      HasSubstr("); no group of workers stands: 0 of 1 workers registered; none for rank 0; worker of rank 0 was "
                "lost: process ended with signal 9 (Killed)"));
}

// --start_timeout without any progress: waiting requests end with an error, and new ones are refused at once until a
// worker comes.
TEST_F(EngineTest, AGroupThatDoesNotReturnIsGivenUpUntilAWorkerComes) {
  config.workers = 2;
  config.start_timeout = absl::Seconds(2);  // also limits the first forming
  Start();
  Connect(1);
  Connect(2, "secret", 1);
  AwaitReady(true);
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Reader waiting, refused, returned;
  Submit(waiting, "a", 5);
  EXPECT_EQ(waiting.Reason(), "WORKER_LOST");
  Submit(refused, "b", 5);
  EXPECT_EQ(refused.Reason(), "WORKER_LOST");
  EXPECT_EQ(std::string(refused.End().message()),
            "no group of workers within --start_timeout=2s: 1 of 2 workers registered; none for rank 0; worker of "
            "rank 0 was lost: its link ended");
  Connect(3);
  AwaitReady(true);
  Submit(returned, "c", 5);
  EXPECT_TRUE(returned.End().ok()) << returned.End();
}

TEST_F(EngineTest, ADrainWithoutAGroupEndsArrivalsThatWaited) {
  StartReady();
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Reader waiting, late;
  Submit(waiting, "a", 5);
  Finalize();
  absl::Notification drained;
  engine->Drain(absl::Milliseconds(1), [&] { drained.Notify(); });
  EXPECT_EQ(waiting.Reason(), "DRAINING");
  EXPECT_TRUE(drained.WaitForNotificationWithTimeout(kPatience));
  Submit(late, "b", 5);
  EXPECT_EQ(late.Reason(), "DRAINING");
}

// Clients see rank and reason; only the log has the process.
TEST_F(EngineTest, ClientsAreReportedHowAWorkerEndedButNotWhichProcessItWas) {
  config.batching.max_losses = 0;
  end_of = "signal 9 (Killed)";
  StartReady();
  worker->Allow(0);
  Reader running;
  Submit(running, "a", 5);
  worker->AwaitHeld();
  engine->links()->OnLinkLost(1, "its link ended");
  EXPECT_EQ(std::string(running.End().message()),
            "the workers' group was lost: worker of rank 0 was lost: process ended with signal 9 (Killed)");
}

TEST_F(EngineTest, ASilentWorkerIsFencedAndItsRequestsEndWithinTwoSeconds) {
  config.batching.max_losses = 0;
  StartReady();
  worker->Allow(0);
  Reader reader;
  Submit(reader, "r", 5);
  worker->AwaitHeld();
  hearts.Set({});
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reader.End().message()), HasSubstr("no heartbeat for 1.5s, fenced"));
  EXPECT_EQ(worker->AwaitClosed().code(), absl::StatusCode::kUnavailable);
  worker->Allow(-1);  // the zombie's answer, for an epoch that is over
  Finalize();
  EXPECT_FALSE(engine->load().ready);
}

TEST_F(EngineTest, AResultThatDoesNotFitEndsTheGroupNotTheServer) {
  config.batching.max_losses = 0;
  StartReady();
  worker->Allow(0);
  Reader reader, next;
  Submit(reader, "r", 5);
  worker->AwaitHeld();
  engine->links()->OnStepResult(1, 1, 1, batching::RankResult{});  // no items
  EXPECT_EQ(reader.Reason(), "WORKER_LOST");
  worker->Allow(-1);
  AwaitUps(2);  // the same worker, a new epoch
  Submit(next, "r", 5);
  EXPECT_TRUE(next.End().ok());
  EXPECT_EQ(next.text(), "abcde");
}

TEST_F(EngineTest, NumbersOfAWorkerThatCannotBeDoNotEndTheServer) {
  script.rows_sent = -1;
  StartReady();
  Reader reader;
  Submit(reader, "a", 3);
  EXPECT_TRUE(reader.End().ok()) << reader.End();
  Finalize();
  EXPECT_EQ(metrics->moe_tokens_exchanged->Value(), 0);
}

TEST_F(EngineTest, DrainingLetsRunningRequestsEndAndSendsNewOnesAway) {
  StartReady();
  worker->Allow(2);
  Reader running, late;
  Submit(running, "a", 20);
  running.AwaitTokens(1);
  absl::Notification drained;
  engine->Drain(kPatience, [&] { drained.Notify(); });
  AwaitReady(false);
  Submit(late, "b", 5);
  EXPECT_EQ(late.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(late.Reason(), "DRAINING");
  EXPECT_FALSE(drained.HasBeenNotified());
  worker->Allow(-1);
  EXPECT_TRUE(running.End().ok());
  EXPECT_EQ(running.tokens().size(), 20u);
  EXPECT_TRUE(drained.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(EngineTest, AGroupThatFormsDuringTheDrainDoesNotMakeReady) {
  Start();
  absl::Notification drained;
  engine->Drain(kPatience, [&] { drained.Notify(); });
  ASSERT_TRUE(drained.WaitForNotificationWithTimeout(kPatience));
  Connect(1);
  while (engine->load().group_epoch == 0 || engine->load().workers.empty() ||
         engine->load().workers[0].state != "ready")
    Finalize();
  EXPECT_FALSE(ready.Get());
}

TEST_F(EngineTest, ADrainOverItsTimeEndsTheRest) {
  StartReady();
  worker->Allow(1);
  Reader running;
  Submit(running, "a", 500);
  running.AwaitTokens(1);
  absl::Notification drained;
  engine->Drain(absl::Milliseconds(1), [&] { drained.Notify(); });
  EXPECT_EQ(running.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(running.Reason(), "DRAINING");
  EXPECT_TRUE(drained.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(EngineTest, StopAnswersEverybodyThenAndLater) {
  config.batching.max_num_seqs = 1;
  StartReady();
  worker->Allow(1);
  Reader running, waiting, posted, later;
  Submit(running, "a", 500);
  running.AwaitTokens(1);
  Submit(waiting, "b", 5);
  Finalize();
  Submit(posted, "c", 5);  // may still be in the inbox
  engine->Stop();
  Submit(later, "d", 5);
  for (Reader* reader : {&running, &waiting, &posted, &later}) {
    EXPECT_EQ(reader->End().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(reader->Reason(), "DRAINING");
  }
  bool called = false;
  engine->Abort("a", [&](bool found) {
    EXPECT_FALSE(found);
    called = true;
  });
  EXPECT_TRUE(called);
  engine->Stop();
}

TEST_F(EngineTest, AStartWithoutProgressEndsAndNamesTheRank) {
  config.workers = 2;
  config.start_timeout = absl::Milliseconds(300);
  Start();
  Connect(1);
  EXPECT_EQ(AwaitFatal(),
            "no group of workers within --start_timeout=300ms: 1 of 2 workers registered; none for rank 1");
}

TEST_F(EngineTest, AGroupThatStoodMayTakeItsTimeToReturn) {
  config.start_timeout = absl::Milliseconds(200);
  StartReady();
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  AwaitTick(MonotonicNow() + 3 * config.start_timeout);
  EXPECT_EQ(fatal.Get(), "") << "the server never gives up serving";
}

TEST_F(EngineTest, ALengthBeyondTheModelsContextIsAContradiction) {
  config.batching.max_model_len = 1001;
  Start();
  Connect(1, "guess");  // a stranger cannot stop the server
  Finalize();
  EXPECT_EQ(fatal.Get(), "");
  Connect(2);
  EXPECT_EQ(AwaitFatal(), kBeyondContext);
}

TEST_F(EngineTest, AWorkerFromElsewhereOfTooSmallAModelIsRefusedAlone) {
  config.local_workers = 0;
  config.batching.max_model_len = 1001;
  Start();
  const absl::Status status = Connect(1, "secret", -1)->AwaitClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), kBeyondContext);
  Reader reader;
  Submit(reader, "r", 5);
  EXPECT_EQ(std::string(reader.End().message()), "model tiny is LOADING: 0 of 1 workers registered; none for rank 0");
  EXPECT_EQ(fatal.Get(), "") << "the server waits for a right one";
}

TEST_F(EngineTest, ManyClientsComeCancelAndGo) {
  script.num_blocks = 24;  // 8 clients want 4 each: there are preemptions
  config.batching.max_queue = 1000;
  config.batching.max_num_seqs = 16;
  StartReady();
  std::atomic<int> ok{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int round = 0; round < 12; ++round) {
        Reader reader;
        const uint64_t handle = Submit(reader, absl::StrCat("r", client, ".", round), 50);
        if (round % 3 == 1) reader.AwaitTokens(static_cast<size_t>(1 + (client + round) % 7));
        if (round % 3 != 0) engine->Cancel(handle, absl::CancelledError("x"));
        const absl::Status end = reader.End();
        if (end.ok()) {
          ++ok;
          EXPECT_EQ(reader.tokens().size(), 50u);
        } else {
          EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);
          ++cancelled;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ok + cancelled, 96);
  EXPECT_GE(ok, 32);
  const absl::Time end = absl::Now() + kPatience;
  const auto busy = [this] {
    const batching::SchedulerStats stats = engine->load().scheduler;
    return stats.running > 0 || stats.waiting > 0 || stats.in_flight > 0 || stats.ranks.at(0).blocks_used > 0;
  };
  while (busy() && absl::Now() < end) Finalize();
  EXPECT_FALSE(busy()) << "something leaked";
}

}  // namespace
}  // namespace switchyard::server
