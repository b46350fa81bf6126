// The server's limits and what its errors say: parts of results, deadlines, advice to try again, a drain cut short.
#include <chrono>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/server/core/server_fixture.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

TEST_F(ServerTest, UnaryErrorsSayWhenToTryAgain) {
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  v1::TokenizeRequest request;
  request.set_text("a");
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  EXPECT_EQ(ViewError(status).reason, "MODEL_LOADING");
  EXPECT_EQ(ViewError(status).details.metadata().at("retryable"), "true");
  const auto trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "1000");
  const auto worker = Connect();
  grpc::ClientContext another;
  v1::AbortRequest abort;
  abort.set_request_id("nobody's");
  v1::AbortResponse aborted;
  const ErrorView view = ViewError(stub_->Abort(&another, abort, &aborted));
  EXPECT_EQ(view.details.metadata().at("retryable"), "false");
  EXPECT_EQ(view.details.metadata().at("requestId"), "nobody's");
}

TEST_F(ServerTest, LogprobsThatComeInPartsReachTheClientInOrder) {
  const auto worker = Connect();
  worker->set_parts(2);
  v1::GenerateRequest request;
  for (int i = 0; i < 5; ++i) request.mutable_token_ids()->add_ids('b' + i);
  request.set_prompt_logprobs(0);
  request.set_max_tokens(1);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  std::string seen;
  while (reader->Read(&message)) {
    for (const v1::PositionLogprobs& position : message.prompt_logprobs())
      seen += static_cast<char>(position.chosen().token_id());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(seen, testing::StartsWith("abcd"));
}

TEST_F(ServerTest, ALinkThatSendsPartsWithoutEndIsClosed) {
  const auto worker = Connect();
  for (int i = 0; i < 100000; ++i) {
    if (!worker->SendPart()) break;
  }
  EXPECT_EQ(worker->End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

class DefaultDeadlineTest : public ServerTest {
 protected:
  void Configure(ServerConfig* config) override { config->default_deadline = absl::Milliseconds(300); }
};

TEST_F(DefaultDeadlineTest, IsForRequestsWithoutOne) {
  const auto worker = Connect();
  worker->Hold();
  grpc::ClientContext with;
  with.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1000));
  const auto longer = stub_->Generate(&with, Request(30));
  AwaitRunning(1);
  v1::GenerateResponse message;
  grpc::ClientContext without;
  const auto reader = stub_->Generate(&without, Request(30));
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("--default_deadline, 300ms"));
  EXPECT_EQ(ViewError(status).details.metadata().at("retryable"), "false");
  AwaitRunning(1);  // the one that came before it, with a deadline of its own
}

TEST_F(ServerTest, ADrainThatIsCutShortEndsTheStreams) {
  const auto worker = Connect();
  worker->Hold();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(30));
  AwaitRunning(1);
  int asked = 0;
  server_->Drain([&asked] { return ++asked == 3; });
  EXPECT_EQ(asked, 3);
  server_->Stop();
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(ViewError(reader->Finish()).reason, "DRAINING");
}

}  // namespace
}  // namespace switchyard
