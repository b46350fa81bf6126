// Quotas, owners of requests, and shares of places by key, over real gRPC.
#include <vector>

#include "gmock/gmock.h"
#include "tests/becomes.h"
#include "tests/half_requests.h"
#include "tests/server/keys/keyed_server.h"

namespace switchyard::server {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class KeyRequestsTest : public KeyedServerTest {
 protected:
  struct Answer {
    grpc::Status end;
    int tokens = 0;
    std::string pushback;
    bool aborted = false;
  };
  // A Generate call of three tokens of prompt, begun and not read.
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  Call Begin(const std::string& name, int max_tokens, const std::string& request_id = "") {
    v1::GenerateRequest request = Request(max_tokens);
    request.set_request_id(request_id);
    Call call = {ContextOf(name), nullptr};
    call.reader = stub_->Generate(call.context.get(), request);
    return call;
  }
  static Answer End(Call* call) {
    Answer answer;
    for (v1::GenerateResponse message; call->reader->Read(&message);) {
      answer.tokens += message.token_ids_size();
      answer.aborted = answer.aborted || message.finish().reason() == v1::FINISH_REASON_ABORT;
    }
    answer.end = call->reader->Finish();
    const auto& trailers = call->context->GetServerTrailingMetadata();
    if (const auto it = trailers.find("grpc-retry-pushback-ms"); it != trailers.end())
      answer.pushback = std::string(it->second.data(), it->second.size());
    return answer;
  }
  Answer Generate(const std::string& name, int max_tokens) {
    Call call = Begin(name, max_tokens);
    return End(&call);
  }
  grpc::Status AbortAs(const std::string& name, const std::string& id) {
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    return stub_->Abort(ContextOf(name).get(), request, &response);
  }
  void AwaitRequestsHeld(int wanted) {
    const auto held = [this] { return LoadAs("root").running_requests() + LoadAs("root").waiting_requests(); };
    for (const absl::Time end = absl::Now() + absl::Seconds(60); held() != wanted;) ASSERT_LT(absl::Now(), end);
  }
};

class KeyQuotasOfCallsTest : public KeyRequestsTest {
  std::string Keys() override {
    return KeyLine("alice", "user", "requests_per_minute=2") + KeyLine("bob", "user", "tokens_per_minute=100") +
           KeyLine("root", "admin");
  }
};

TEST_F(KeyQuotasOfCallsTest, RequestsAreCounted) {
  const auto worker = ConnectWorker();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Generate("alice", 2).end.ok()) << i;
  const Answer refused = Generate("alice", 2);
  EXPECT_EQ(refused.end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const rpc::ErrorView view = rpc::ViewError(refused.end);
  EXPECT_EQ(view.reason, "QUOTA");
  EXPECT_GT(view.retry_after, absl::Seconds(10));
  EXPECT_LE(view.retry_after, absl::Seconds(30));
  EXPECT_EQ(view.details.metadata().at("limit"), "2");
  EXPECT_EQ(refused.pushback, absl::StrCat(absl::ToInt64Milliseconds(view.retry_after)));
  EXPECT_THAT(refused.end.error_message(), HasSubstr("requests_per_minute of the key alice: limit 2"));
  EXPECT_TRUE(CallAs("alice", "InferenceService/GetLoad").ok());  // only Generate counts
  EXPECT_TRUE(Generate("root", 2).end.ok());                      // another key, without a quota
}

TEST_F(KeyQuotasOfCallsTest, TokensOfPromptAndAnswerAreCounted) {
  const auto worker = ConnectWorker();
  const Answer first = Generate("bob", 40);  // 43
  EXPECT_TRUE(first.end.ok()) << first.end.error_message();
  EXPECT_TRUE(Generate("bob", 40).end.ok());  // 86
  const Answer refused = Generate("bob", 40);
  EXPECT_EQ(rpc::ViewError(refused.end).reason, "QUOTA");
  EXPECT_THAT(refused.end.error_message(), HasSubstr("tokens_per_minute of the key bob: limit 100"));
  EXPECT_THAT(refused.end.error_message(), HasSubstr("43 wanted"));
}

TEST_F(KeyQuotasOfCallsTest, WhatARequestDidNotUseComesBack) {
  const auto worker = ConnectWorker();
  worker->Hold();
  for (int i = 0; i < 2; ++i) {
    Call call = Begin("bob", 90, "held");  // 93 are taken
    AwaitRequestsHeld(1);
    EXPECT_EQ(rpc::ViewError(Generate("bob", 90).end).reason, "QUOTA");
    EXPECT_TRUE(AbortAs("bob", "held").ok());
    EXPECT_TRUE(End(&call).end.ok());  // only the prompt's 3 count
    AwaitRequestsHeld(0);
  }
}

class KeyMetricsTest : public KeyQuotasOfCallsTest {
  void Configure(ServerConfig* config) override {
    KeyRequestsTest::Configure(config);
    config->metrics_port = 0;
  }
};

TEST_F(KeyMetricsTest, RequestsAndTokensThatQuotasCountAreThereByKey) {
  const auto worker = ConnectWorker();
  const auto page = [this] { return PageOf(server_->metrics_port(), 30); };
  EXPECT_THAT(page(), Not(HasSubstr("switchyard_key_"))) << "no key has called";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Generate("alice", 2).end.ok()) << i;
  EXPECT_EQ(rpc::ViewError(Generate("alice", 2).end).reason, "QUOTA");  // does not count
  worker->Hold();
  Call call = Begin("bob", 90, "held");
  AwaitRequestsHeld(1);
  EXPECT_TRUE(AbortAs("bob", "held").ok());
  EXPECT_TRUE(End(&call).end.ok());
  // Tokens count when the server has done with a request, which is after its client has.
  const auto shows = [&](const std::string& name, const std::string& key, int count) {
    const auto line =
        ContainsRegex(absl::StrCat("switchyard_key_", name, "_total\\{[^}]*key=\"", key, "\"[^}]*\\} ", count, "\n"));
    return Becomes([&] { return testing::Value(page(), line); });
  };
  EXPECT_TRUE(shows("requests", "alice", 2)) << page();
  EXPECT_TRUE(shows("tokens", "alice", 10)) << page();  // of two prompts of 3, and two answers of 2
  EXPECT_TRUE(shows("requests", "bob", 1)) << page();
  EXPECT_TRUE(shows("tokens", "bob", 3)) << "what was not used was given back: " << page();
}

TEST_F(KeyRequestsTest, OnlyTheOwnerAndAdminsAbort) {
  const auto worker = ConnectWorker();
  worker->Hold();
  Call alices = Begin("alice", 9, "r"), bobs = Begin("bob", 9, "r");  // each has ids of its own
  AwaitRequestsHeld(2);
  const grpc::Status others = AbortAs("tina", "r");
  EXPECT_EQ(others.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(others.error_message(), "no running request has the id \"r\"");
  EXPECT_TRUE(AbortAs("alice", "r").ok());
  EXPECT_TRUE(End(&alices).aborted);
  EXPECT_EQ(AbortAs("alice", "r").error_code(), grpc::StatusCode::NOT_FOUND);
  AwaitRequestsHeld(1);
  EXPECT_TRUE(AbortAs("root", "r").ok());
  EXPECT_TRUE(End(&bobs).aborted);
}

class KeySharesTest : public KeyRequestsTest {
  void Configure(ServerConfig* config) override {
    KeyRequestsTest::Configure(config);
    config->max_streams = 4;
  }
};

TEST_F(KeySharesTest, AKeyHasHalfOfThePlacesAlsoOnLoopback) {
  const auto worker = ConnectWorker();
  worker->Hold();
  std::vector<Call> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(Begin("alice", 9));
  AwaitRequestsHeld(2);
  const Answer third = Generate("alice", 9);
  EXPECT_EQ(rpc::ViewError(third.end).reason, "TOO_MANY_STREAMS");
  EXPECT_THAT(third.end.error_message(), HasSubstr("of one client: limit 2"));
  calls.push_back(Begin("bob", 9));
  AwaitRequestsHeld(3);
  for (Call& call : calls) call.context->TryCancel();
  for (Call& call : calls) End(&call);
}

}  // namespace
}  // namespace switchyard::server
