// Requests in the engine: tokens in order, and every way to end.
#include "server/engine/engine_loop.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(EngineTest, TokensComeInOrderWithTextAndTheEndReportsAll) {
  StartReady();
  Reader reader;
  Submit(reader, "r", 30);
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abcdefghijklmnopqrstuvwxyzabcd");
  const OutputChunk last = reader.last();
  EXPECT_TRUE(last.finished);
  EXPECT_EQ(last.reason, batching::FinishReason::kLength);
  EXPECT_EQ(last.usage.prompt_tokens, 3);
  EXPECT_EQ(last.usage.completion_tokens, 30);
  const std::shared_ptr<const ServedModel> model = engine->model();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->name, "tiny");
  EXPECT_EQ(model->max_model_len, 1000);
  EXPECT_EQ(model->num_workers, 1);
}

TEST_F(EngineTest, TheClientsTimeInTheQueueBeginsWithItsArrival) {
  StartReady();
  Reader reader;
  auto request = Request("r", 1);
  request->arrival -= absl::Hours(1);  // it waited elsewhere before it was submitted
  Submit(reader, std::move(request));
  ASSERT_TRUE(reader.End().ok()) << reader.End();
  EXPECT_GE(reader.last().timings.Queue(), absl::Hours(1));
  EXPECT_LT(reader.last().timings.Prefill(), absl::Hours(1));
}

TEST_F(EngineTest, EveryChoiceEndsOnce) {
  StartReady();
  auto request = Request("r", 8);
  request->num_choices = 3;
  Reader reader;
  Submit(reader, std::move(request));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.finished_choices(), 3);
  EXPECT_EQ(reader.text(), "abcdefgh");
}

TEST_F(EngineTest, WithoutATokenizerTokensComeAlone) {
  StartReady();
  auto request = Request("r", 3);
  request->has_text = false;
  Reader reader;
  Submit(reader, std::move(request));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.tokens(), (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(reader.text(), "");
}

TEST_F(EngineTest, AStopStringEndsTheChoiceAndIsNotShown) {
  StartReady();
  auto request = Request("r", 500);
  request->stop = {"zz", "def"};
  Reader reader;
  Submit(reader, std::move(request));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(reader.tokens().size(), 6u) << "the tokens of the stop string are sent, those after it are not";
  EXPECT_EQ(reader.last().reason, batching::FinishReason::kStop);
  EXPECT_EQ(reader.last().stop_string, "def");
  EXPECT_EQ(reader.last().stop_token, -1);
}

// The scheduler, which sees no text, ends this choice for its length first.
TEST_F(EngineTest, AStopStringThatTheLastAllowedTokenCompletesIsAStop) {
  StartReady();
  auto request = Request("r", 6);
  request->stop = {"def"};
  Reader reader;
  Submit(reader, std::move(request));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(reader.tokens().size(), 6u);
  EXPECT_EQ(reader.last().reason, batching::FinishReason::kStop);
  EXPECT_EQ(reader.last().stop_string, "def");
  EXPECT_EQ(metrics->request_success(batching::FinishReason::kStop).Value(), 1);
  EXPECT_EQ(metrics->request_success(batching::FinishReason::kLength).Value(), 0);
  auto other = Request("other", 5);
  other->stop = {"def"};
  Reader cut;
  Submit(cut, std::move(other));
  EXPECT_TRUE(cut.End().ok());
  EXPECT_EQ(cut.text(), "abcde") << "what might have become the stop string is shown";
  EXPECT_EQ(cut.last().reason, batching::FinishReason::kLength);
}

TEST_F(EngineTest, AStopTokenEndsTheChoiceAndIsNamed) {
  StartReady();
  auto request = Request("r", 500);
  request->sampling.stop_ids = {'d'};
  Reader reader;
  Submit(reader, std::move(request));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(reader.last().reason, batching::FinishReason::kStop);
  EXPECT_EQ(reader.last().stop_token, 'd');
}

TEST_F(EngineTest, BeforeTheModelIsKnownRequestsAreSentAway) {
  Start();
  Reader reader;
  Submit(reader, "r", 5);
  EXPECT_EQ(reader.Reason(), "MODEL_LOADING");
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(reader.End().message()), "model tiny is LOADING: 0 of 1 workers registered; none for rank 0");
  EXPECT_GT(rpc::ViewError(rpc::ToGrpcStatus(reader.End(), "")).retry_after, absl::ZeroDuration());
  EXPECT_EQ(engine->model(), nullptr);
}

TEST_F(EngineTest, AWorkerWithAnotherTokenIsSentAway) {
  Start();
  EXPECT_EQ(Connect(1, "guess")->AwaitClosed().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(EngineTest, TheIdOfALiveRequestIsTaken) {
  StartReady();
  worker->Allow(0);
  Reader first, second, third;
  Submit(first, "same", 5);
  Submit(second, "same", 5);
  EXPECT_EQ(second.End().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.Reason(), "REQUEST_EXISTS");
  worker->Allow(-1);
  EXPECT_TRUE(first.End().ok());
  Submit(third, "same", 5);
  EXPECT_TRUE(third.End().ok()) << "free again after its end";
}

TEST_F(EngineTest, AFullQueueRefusesAtOnceWithAHint) {
  config.batching.max_num_seqs = 1;
  config.batching.max_queue = 1;
  StartReady();
  worker->Allow(0);
  Reader running, waiting, refused;
  Submit(running, "a", 5);
  worker->AwaitHeld();
  Submit(waiting, "b", 5);
  Submit(refused, "c", 5);
  EXPECT_EQ(refused.End().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.Reason(), "QUEUE_FULL");
  EXPECT_GE(rpc::ViewError(rpc::ToGrpcStatus(refused.End(), "")).retry_after, absl::Milliseconds(50));
  worker->Allow(-1);
  EXPECT_TRUE(running.End().ok());
  EXPECT_TRUE(waiting.End().ok());
}

TEST_F(EngineTest, CancellingFreesSlotAndBlocks) {
  StartReady();
  worker->Allow(1);
  Reader reader;
  const uint64_t handle = Submit(reader, "r", 500);
  reader.AwaitTokens(1);
  const auto await_used = [this](bool used) {
    for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end; Finalize()) {
      const batching::SchedulerStats stats = engine->load().scheduler;
      if (!stats.ranks.empty() && (stats.ranks[0].blocks_used > 0) == used) return true;
    }
    return false;
  };
  EXPECT_TRUE(await_used(true));
  engine->Cancel(handle, absl::CancelledError("the client cancelled"));
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kCancelled);
  worker->Allow(-1);  // the steps in flight are answered
  EXPECT_TRUE(await_used(false));
  engine->Cancel(handle, absl::CancelledError("again"));
  engine->Cancel(12345, absl::CancelledError("unknown"));
  Reader next;
  Submit(next, "r", 3);
  EXPECT_TRUE(next.End().ok());
}

TEST_F(EngineTest, AbortEndsWithAReasonAndNoError) {
  StartReady();
  worker->Allow(2);
  Reader reader;
  Submit(reader, "r", 500);
  reader.AwaitTokens(1);
  absl::Notification done;
  bool was_there = false;
  engine->Abort("r", [&](bool found) {
    was_there = found;
    done.Notify();
  });
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.last().reason, batching::FinishReason::kAbort);
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(was_there);
  absl::Notification again;
  engine->Abort("r", [&](bool found) {
    EXPECT_FALSE(found);
    again.Notify();
  });
  ASSERT_TRUE(again.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(EngineTest, DeadlinesEndRunningQueuedAndLateRequests) {
  config.batching.max_num_seqs = 1;
  StartReady();
  worker->Allow(0);
  Reader running, queued, late;
  for (auto& [reader, id, left] :
       {std::tuple(&running, "a", absl::Milliseconds(30)), std::tuple(&queued, "b", absl::Milliseconds(30)),
        std::tuple(&late, "c", -absl::Seconds(1))}) {
    auto request = Request(id, 500);
    request->deadline = MonotonicNow() + left;
    Submit(*reader, std::move(request));
  }
  for (Reader* reader : {&running, &queued, &late}) {
    EXPECT_EQ(reader->End().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(reader->Reason(), "DEADLINE");
  }
  worker->Allow(-1);
  Reader again;
  Submit(again, "a", 5);
  EXPECT_TRUE(again.End().ok()) << "after a timeout the id is free: " << again.End();
}

TEST_F(EngineTest, AReaderThatDoesNotReadIsEndedAloneAndOthersGoOn) {
  config.slow_client_timeout = absl::Milliseconds(20);
  StartReady();
  worker->Allow(5);
  Reader slow(/*reads=*/false), quick;
  Submit(slow, "slow", 900);
  Submit(quick, "quick", 40);
  EXPECT_EQ(slow.End().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(slow.Reason(), "SLOW_READER");
  worker->Allow(-1);
  EXPECT_TRUE(quick.End().ok());
  EXPECT_EQ(quick.tokens().size(), 40u);
}

TEST_F(EngineTest, NotANumberEndsTheRequestAsDataLoss) {
  StartReady();
  worker->Allow(0);
  Reader reader;
  Submit(reader, "r", 5);
  worker->AwaitHeld();
  batching::RankResult result;
  result.items.resize(1);
  result.items[0].status = batching::ItemStatus::kNonFinite;
  engine->links()->OnStepResult(1, 1, 1, result);
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(reader.Reason(), "NUMERIC_ERROR");
}

}  // namespace
}  // namespace switchyard::server
