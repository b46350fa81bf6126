// The server's limits and their errors: parts of results, deadlines, advice to retry, a drain that is cut short.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/server/server_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(ServerTest, UnaryErrorsSayWhenToTryAgain) {
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  v1::TokenizeRequest request;
  request.set_text("a");
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  EXPECT_EQ(rpc::ViewError(status).reason, "MODEL_LOADING");
  EXPECT_EQ(rpc::ViewError(status).details.metadata().at("retryable"), "true");
  const auto trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "1000");
  const auto worker = Connect();
  grpc::ClientContext another;
  v1::AbortRequest abort;
  abort.set_request_id("nobody's");
  v1::AbortResponse aborted;
  const rpc::ErrorView view = rpc::ViewError(stub_->Abort(&another, abort, &aborted));
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

// What a worker sends on a link, from its registration on; returns how the server ends it.
class LinkBoundsTest : public ServerTest {
 protected:
  LinkBoundsTest() {
    v1::Register* const out = hello_.mutable_register_();
    out->set_protocol_version(link::kProtocolVersion);
    out->set_incarnation("bounds");
    out->set_join_token(kToken);
    out->mutable_model()->set_context(1000);
    out->mutable_model()->set_num_moe_layers(94);
    out->mutable_model()->set_num_experts(128);
    out->mutable_model()->set_experts_per_token(8);
  }
  grpc::Status EndOf(const std::vector<v1::LinkRequest>& messages) {
    const auto stub = v1::WorkerService::NewStub(worker_channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stream = stub->Link(&context);
    stream->Write(hello_);
    for (const v1::LinkRequest& message : messages) stream->Write(message);
    for (v1::LinkResponse response; stream->Read(&response);) {
    }
    return stream->Finish();
  }
  // Parts with the experts of as many rows as a step has, so many times.
  std::vector<v1::LinkRequest> Paths(int times) const {
    constexpr int kRows = 64, kRowBytes = 2 * 94 * 8;
    v1::LinkRequest part;
    part.mutable_step_part()->set_expert_paths(std::string(kRows * kRowBytes, 'x'));
    return std::vector<v1::LinkRequest>(static_cast<size_t>(times * config_.batching.max_batched_tokens / kRows), part);
  }
  v1::LinkRequest hello_;
};

TEST_F(LinkBoundsTest, EveryRowOfAWideModelMayHaveItsExperts) {
  std::vector<v1::LinkRequest> messages = Paths(1);
  messages.push_back(hello_);
  EXPECT_EQ(EndOf(messages).error_message(), "a second registration on one link");
}

TEST_F(LinkBoundsTest, PartsOfMoreRowsThanAStepHasEndTheLink) {
  EXPECT_THAT(EndOf(Paths(3)).error_message(), HasSubstr("the logprobs and experts of all its rows at most"));
}

TEST_F(LinkBoundsTest, AReadyWorkerHasBlocks) {
  v1::LinkRequest ready;
  ready.mutable_group_ready()->set_epoch(1);
  const grpc::Status status = EndOf({ready});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "a worker is ready with 0 KV blocks: there must be at least 1");
}

TEST_F(LinkBoundsTest, AWorkerThatServesNamesItsModel) {
  hello_.mutable_register_()->clear_model();
  const grpc::Status status = EndOf({});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a worker that serves names its model"));
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
  EXPECT_EQ(rpc::ViewError(status).details.metadata().at("retryable"), "false");
  AwaitRunning(1);  // the earlier request, which has its own deadline
}

// A Generate call, message by message; every operation is bounded by the call's deadline.
class RawGenerate {
 public:
  explicit RawGenerate(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    call_ = stub_.PrepareCall(&context_, "/switchyard.v1.InferenceService/Generate", &queue_);
    call_->StartCall(this);
    Next();
  }
  void Write(const v1::GenerateRequest& request) {
    const grpc::Slice slice(request.SerializeAsString());
    call_->Write(grpc::ByteBuffer(&slice, 1), this);
    Next();
  }
  void WritesDone() {
    call_->WritesDone(this);
    Next();
  }
  // Reads to the end.
  grpc::Status End() {
    grpc::ByteBuffer message;
    do {
      call_->Read(&message, this);
    } while (Next());
    grpc::Status status;
    call_->Finish(&status, this);
    Next();
    return status;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class RequestMessageTest : public ServerTest {
 protected:
  void Configure(ServerConfig* config) override { config->request_message_timeout = absl::Milliseconds(300); }
};

TEST_F(RequestMessageTest, ThatNeverComesEndsTheCall) {
  const auto worker = Connect();
  RawGenerate silent(channel_);
  const grpc::Status status = silent.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "no request message came within 300ms (--request_message_timeout)");
  EXPECT_EQ(rpc::ViewError(status).reason, "DEADLINE");
  EXPECT_EQ(rpc::ViewError(status).details.metadata().at("limit"), "300ms");
}

TEST_F(RequestMessageTest, ThatHasComeMayTakeItsTime) {
  const auto worker = Connect();
  worker->Hold();
  RawGenerate call(channel_);
  call.Write(Request(3));
  AwaitRunning(1);
  RawGenerate silent(channel_);
  EXPECT_EQ(silent.End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitRunning(1);  // open for longer than the one that was ended
}

TEST_F(RequestMessageTest, ThatIsLeftOutEndsTheCall) {
  const auto worker = Connect();
  RawGenerate empty(channel_);
  empty.WritesDone();
  const grpc::Status status = empty.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "the call ended without its request message");
}

TEST_F(RequestMessageTest, ASecondOneEndsTheCall) {
  const auto worker = Connect();
  worker->Hold();
  RawGenerate call(channel_);
  call.Write(Request(3));
  AwaitRunning(1);
  call.Write(Request(3));
  const grpc::Status status = call.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "a second request message on one Generate call: one is the limit");
  AwaitRunning(0);
}

class OneClientTest : public ServerTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->max_streams = 100;
    config->max_streams_per_client = 2;
    config->max_connections = 100;
    config->max_connections_per_client = 3;
  }
};

TEST_F(OneClientTest, HasItsShareOfTheStreams) {
  const auto worker = Connect();
  worker->Hold();
  grpc::ClientContext contexts[2];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> held;
  for (grpc::ClientContext& context : contexts) held.push_back(stub_->Generate(&context, Request(30)));
  AwaitRequests(2);
  RawGenerate third(channel_);
  const grpc::Status status = third.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "open Generate calls of one client: limit 2");
  EXPECT_EQ(rpc::ViewError(status).reason, "TOO_MANY_STREAMS");
  EXPECT_GT(rpc::ViewError(status).retry_after, absl::ZeroDuration());
  contexts[0].TryCancel();
  AwaitRequests(1);
  grpc::ClientContext again;
  const auto fourth = stub_->Generate(&again, Request(30));
  AwaitRequests(2);
  contexts[1].TryCancel();
  again.TryCancel();
  for (auto& reader : held) (void)reader->Finish();
  (void)fourth->Finish();
}

TEST_F(OneClientTest, HasItsShareOfTheConnections) {
  const auto worker = Connect();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  int reached = 1;  // counts this test
  for (int i = 0; i < 6; ++i) {
    grpc::ChannelArguments apart;
    apart.SetInt("apart", i);
    apart.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                 grpc::InsecureChannelCredentials(), apart));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetLoadResponse load;
    const grpc::Status status =
        v1::InferenceService::NewStub(channels.back())->GetLoad(&context, v1::GetLoadRequest(), &load);
    if (status.ok()) {
      ++reached;
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    }
  }
  EXPECT_EQ(reached, 3) << "its share; the worker is at another port";
  AwaitRunning(0);  // earlier clients are served
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
  EXPECT_EQ(rpc::ViewError(reader->Finish()).reason, "DRAINING");
}

}  // namespace
}  // namespace switchyard::server
