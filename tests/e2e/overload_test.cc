// More work than a small server can take: the queue's bound, preemption when KV blocks run out.
#include <algorithm>

#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/raw_call.h"

namespace switchyard {
namespace {

TEST(OverloadTest, BeyondTheQueueRequestsAreRefusedAtOnceWithAHint) {
  const auto server =
      TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--max_num_seqs=1", "--max_queue=4"}});
  ASSERT_NE(server, nullptr);
  const std::vector<v1::GenerateRequest> requests(24, IdsRequest(RandomIds(8, 256, 1), 300));
  const std::vector<StreamSeen> seen = GenerateAll(server->client(), requests);
  int finished = 0, refused = 0;
  const StreamSeen* first = nullptr;  // of those that were served: any of them may be refused
  for (const StreamSeen& one : seen) {
    if (one.ok()) {
      ++finished;
      if (first == nullptr) first = &one;
      EXPECT_EQ(one.choices[0].token_ids, first->choices[0].token_ids);
      continue;
    }
    ++refused;
    const client::ErrorDescription error = client::Describe(one.end);
    EXPECT_EQ(error.code, "RESOURCE_EXHAUSTED") << one.end;
    EXPECT_EQ(error.reason, "QUEUE_FULL");
    EXPECT_GT(error.retry_after, absl::ZeroDuration());
    EXPECT_TRUE(one.choices.empty());
  }
  EXPECT_GE(finished, 4);
  EXPECT_GE(refused, 1);
  EXPECT_TRUE(server->WaitIdle());
}

TEST(OverloadTest, WhenBlocksRunOutSequencesArePreemptedAndAnswersStay) {
  std::vector<v1::GenerateRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) requests.push_back(IdsRequest(RandomIds(50, 256, i), 120));
  std::vector<StreamSeen> roomy;
  {
    const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {}});
    ASSERT_NE(server, nullptr);
    roomy = GenerateAll(server->client(), requests);
  }
  // Room for about five of the sixteen: a token takes 2 layers x (k, v) x 2 heads x 16 x 2 bytes = 256 bytes.
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--kv_cache_bytes=229376"}});
  ASSERT_NE(server, nullptr);
  const std::vector<StreamSeen> tight = GenerateAll(server->client(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(tight[i].ok()) << tight[i].end << " " << tight[i].fault;
    EXPECT_EQ(tight[i].choices[0].token_ids, roomy[i].choices[0].token_ids) << i;
  }
  // GetLoad's figures are up to 50 ms old (the engine's tick).
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto load = server->client().GetLoad();
        return load.ok() && load->preemptions() > 0;
      },
      absl::Seconds(5)));
  EXPECT_TRUE(server->WaitIdle());
}

TEST(OverloadTest, StreamsAreBounded) {
  const auto server =
      TestServer::Start({.model = kTinyModel,
                         .workers = 1,
                         .flags = {"--max_streams=4", "--max_streams_per_client=4", "--max_num_seqs=2"}});
  ASSERT_NE(server, nullptr);
  const std::vector<StreamSeen> seen =
      GenerateAll(server->client(), std::vector<v1::GenerateRequest>(12, IdsRequest({5, 6, 7}, 400)));
  const auto refused = std::count_if(seen.begin(), seen.end(), [](const StreamSeen& one) {
    return !one.ok() && client::Describe(one.end).reason == "TOO_MANY_STREAMS";
  });
  const auto finished = std::count_if(seen.begin(), seen.end(), [](const StreamSeen& one) { return one.ok(); });
  EXPECT_GE(refused, 1);
  EXPECT_GE(finished, 4);
  EXPECT_EQ(static_cast<size_t>(refused + finished), seen.size());
}

// What gRPC's own retries read.
TEST(OverloadTest, ARefusalReportsLibrariesWhenToRetry) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--max_streams=1"}});
  ASSERT_NE(server, nullptr);
  absl::Notification began;
  auto holds = server->client().StartGenerate(IdsRequest({5, 6, 7}, 600), {.on_message =
                                                                               [&began](const v1::GenerateResponse&) {
                                                                                 if (!began.HasBeenNotified())
                                                                                   began.Notify();
                                                                               },
                                                                           .on_done = nullptr});
  ASSERT_TRUE(began.WaitForNotificationWithTimeout(absl::Seconds(30)));
  const RawAnswer refused = RawCall(server->client().channel(), "/switchyard.v1.InferenceService/Generate",
                                    IdsRequest({5}, 2).SerializeAsString(), absl::Seconds(20));
  const bool still_held = !holds->Done();
  holds->Cancel();
  if (!still_held) GTEST_SKIP() << "the first stream ended too soon";
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto pushback = refused.trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, refused.trailers.end());
  EXPECT_GT(std::stoi(pushback->second), 0);
}

// A model without a tokenizer serves token ids and says so when asked for text.
TEST(NoTokenizerTest, TextIsRefusedWithAdvice) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--served_model_name=tiny"}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->client().GetModelInfo()->model(), "tiny");
  EXPECT_FALSE(server->client().GetModelInfo()->has_tokenizer());
  const StreamSeen text = Generate(server->client(), TextRequest("hi", 2));
  EXPECT_EQ(text.end.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client::Describe(text.end).reason, "NO_TOKENIZER");
  v1::GenerateRequest stop = IdsRequest({5}, 2);
  stop.add_stop("x");
  EXPECT_EQ(client::Describe(Generate(server->client(), stop).end).reason, "NO_TOKENIZER");
  const StreamSeen ids = Generate(server->client(), IdsRequest({5, 6}, 4));
  ASSERT_TRUE(ids.ok()) << ids.end;
  EXPECT_EQ(ids.choices[0].token_ids.size(), 4u);
  EXPECT_EQ(ids.choices[0].text, "");
}

}  // namespace
}  // namespace switchyard
