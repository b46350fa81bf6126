// The whole server in this process, over loopback, with a worker that speaks the real link but computes nothing.
#include "server/server.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/link/link_protocol.h"
#include "proto/support/errors.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "tests/server/server_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(ServerTest, ARequestStreamsItsTokens) {
  const auto worker = Connect();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(30));
  v1::GenerateResponse message;
  std::string text;
  int tokens = 0;
  bool first = true, finished = false;
  while (reader->Read(&message)) {
    EXPECT_EQ(message.index(), tokens);
    EXPECT_EQ(message.request_id().empty(), !first);
    EXPECT_EQ(message.model(), first ? "tiny" : "");
    first = false;
    text += message.text();
    tokens += message.token_ids_size();
    EXPECT_FALSE(finished);
    finished = message.has_finish();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "abcdefghijklmnopqrstuvwxyzabcd");
  EXPECT_EQ(tokens, 30);
  EXPECT_TRUE(finished);
  EXPECT_EQ(message.finish().reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ServerTest, BytesThatAreNoMessageGetAReason) {
  for (const char* method : {"Generate", "Abort", "Tokenize", "Detokenize", "GetModelInfo", "GetLoad"}) {
    const grpc::Status status = Call(method, "\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("Request: truncated varint at byte 0"));
    EXPECT_EQ(rpc::ViewError(status).reason, "BAD_REQUEST_BYTES");
  }
  EXPECT_EQ(Call("Nothing", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const grpc::Status loading = Call("Tokenize", "");
  EXPECT_EQ(loading.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(rpc::ViewError(loading).reason, "MODEL_LOADING");
  EXPECT_THAT(loading.error_message(), HasSubstr("model tiny is LOADING: 0 of 1 workers"));
  EXPECT_EQ(Call("GetLoad", std::string(5 << 20, 'a')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerTest, AStrangerIsTurnedAwayFromTheLink) {
  LinkWorker stranger(worker_channel_, "guess");
  EXPECT_EQ(stranger.End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// Opens a link as a stranger may do, sends the messages, and returns how the server ended it.
grpc::Status LinkEnd(const std::shared_ptr<grpc::Channel>& channel, const std::vector<v1::LinkRequest>& messages) {
  const auto stub = v1::WorkerService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto stream = stub->Link(&context);
  for (const v1::LinkRequest& message : messages) stream->Write(message);
  for (v1::LinkResponse response; stream->Read(&response);) {
  }
  return stream->Finish();
}

TEST_F(ServerTest, EachPortHasServicesOfItsOwn) {
  const struct {
    std::shared_ptr<grpc::Channel> channel;
    const char* method;
    const char* says;
  } kCalls[] = {
      {channel_, "WorkerService/StoreSet", "this port (--port); WorkerService is on that of --worker_port"},
      {channel_, "TrainingService/ListJobs", "this port (--port); TrainingService is on that of --admin_port"},
      {channel_, "AdminService/GetPlan", "this port (--port); AdminService is on that of --admin_port"},
      {admin_channel_, "InferenceService/GetLoad", "(--admin_port); InferenceService is on that of --port"},
      {admin_channel_, "WorkerService/StoreSet", "(--admin_port); WorkerService is on that of --worker_port"},
      {worker_channel_, "InferenceService/GetLoad", "(--worker_port); InferenceService is on that of --port"},
      {worker_channel_, "TrainingService/ListJobs", "(--worker_port); TrainingService is on that of --admin_port"},
  };
  for (const auto& call : kCalls) {
    const grpc::Status status = Call(call.method, "", "/switchyard.v1.", call.channel);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << call.method;
    EXPECT_THAT(status.error_message(), HasSubstr(call.says));
  }
  EXPECT_EQ(Call("Nothing", "").error_message(), "no such method on this port (--port)");
}

TEST_F(ServerTest, ALinkThatDoesNotRegisterIsEndedSoon) {
  const absl::Time start = absl::Now();
  const grpc::Status silent = LinkEnd(worker_channel_, {});
  EXPECT_EQ(silent.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(silent.error_message(), "the link did not register within 5s");
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_F(ServerTest, ALinkBeginsWithItsOneRegistration) {
  v1::LinkRequest beat, hello;
  beat.mutable_heartbeat();
  hello.mutable_register_()->set_protocol_version(link::kProtocolVersion);
  hello.mutable_register_()->set_incarnation("twice");
  hello.mutable_register_()->mutable_model()->set_context(100);
  hello.mutable_register_()->set_join_token(kToken);
  for (const v1::LinkRequest& first : {beat, v1::LinkRequest()}) {
    const grpc::Status status = LinkEnd(worker_channel_, {first});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "a link begins with its registration");
  }
  const grpc::Status twice = LinkEnd(worker_channel_, {hello, hello});
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(twice.error_message(), "a second registration on one link");
  v1::LinkRequest old = hello;
  old.mutable_register_()->set_protocol_version(0);
  EXPECT_EQ(LinkEnd(worker_channel_, {old}).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// The server does not parse a stranger's message that is too long for a registration.
TEST_F(ServerTest, ALinksFirstMessageIsSmall) {
  v1::LinkRequest results, hello;
  for (int i = 0; i < 40000; ++i) results.mutable_step_result()->add_items();
  hello.mutable_register_()->set_protocol_version(link::kProtocolVersion);
  hello.mutable_register_()->set_join_token(kToken);
  hello.mutable_register_()->set_host(std::string(70000, 'h'));
  for (const v1::LinkRequest& first : {results, hello}) {
    const grpc::Status status = LinkEnd(worker_channel_, {first});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), absl::StrCat("a link's first message has ", first.ByteSizeLong(),
                                                   " bytes, limit 65536: a link begins with its registration"));
  }
}

TEST_F(ServerTest, BytesThatAreNoMessageOfAWorkerGetAReason) {
  const std::string no_text = "\x0a\x01\xff";
  for (const char* method : {"StoreSet", "StoreGet"}) {
    const grpc::Status status = Call(method, no_text, "/switchyard.v1.WorkerService/", worker_channel_);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("request is not a valid Store"));
    EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
    EXPECT_EQ(rpc::ViewError(status).reason, "BAD_REQUEST_BYTES");
  }
}

class FailingStreamsTest : public ServerTest {
  void Configure(ServerConfig* config) override { config->batching.max_losses = 0; }
};

TEST_F(FailingStreamsTest, ALostWorkerEndsTheStreamAndAnotherTakesOver) {
  auto worker = Connect();
  worker->Hold();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(30));
  AwaitRunning(1);
  worker.reset();
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(rpc::ViewError(status).reason, "WORKER_LOST");
  EXPECT_TRUE(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"));
  worker = Connect();
  grpc::ClientContext again;
  const auto next = stub_->Generate(&again, Request(3));
  while (next->Read(&message)) {
  }
  EXPECT_TRUE(next->Finish().ok());
}

TEST_F(ServerTest, StopAnswersStreamsLinksAndRendezvousWaits) {
  const auto worker = Connect();
  worker->Hold();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(30));
  AwaitRunning(1);
  grpc::Status waited;
  std::thread waits([&] {
    grpc::ClientContext get;
    v1::StoreGetRequest request;
    request.set_store_token(worker->store_token());
    request.add_keys("never");
    request.set_timeout_ms(3600000);
    v1::StoreGetResponse response;
    waited = v1::WorkerService::NewStub(worker_channel_)->StoreGet(&get, request, &response);
  });
  const absl::Time start = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(rpc::ViewError(status).reason, "DRAINING");
  waits.join();
  EXPECT_FALSE(waited.ok());
  EXPECT_EQ(worker->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Stop();
}

class SlowReaderTest : public ServerTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->slow_client_timeout = absl::Milliseconds(500);
    config->max_streams = 1;
  }
};

class NeverReaderTest : public SlowReaderTest {
 protected:
  void Configure(ServerConfig* config) override {
    SlowReaderTest::Configure(config);
    config->unread_end_timeout = absl::Milliseconds(500);
  }
};

// A client that keeps its connection and never reads, not even the end that gRPC holds for it: its stream's place
// becomes free.
TEST_F(NeverReaderTest, ItsStreamIsResetAndItsPlaceIsFree) {
  const auto worker = Connect();
  worker->set_logprobs(20);
  grpc::ClientContext context;
  v1::GenerateRequest request = Request(50000);
  request.set_logprobs(20);
  const auto never_reads = stub_->Generate(&context, request);
  AwaitRunning(1);
  AwaitRunning(0);
  worker->set_logprobs(-1);
  grpc::Status next(grpc::StatusCode::UNKNOWN, "");
  for (const absl::Time end = absl::Now() + absl::Seconds(20); !next.ok() && absl::Now() < end;) {
    grpc::ClientContext again;
    const auto reader = stub_->Generate(&again, Request(3));
    for (v1::GenerateResponse message; reader->Read(&message);) {
    }
    next = reader->Finish();
    const bool expected = next.ok() || rpc::ViewError(next).reason == "TOO_MANY_STREAMS";
    EXPECT_TRUE(expected) << next.error_message();
  }
  EXPECT_TRUE(next.ok()) << "the place is never free: " << next.error_message();
  for (v1::GenerateResponse message; never_reads->Read(&message);) {
  }
  EXPECT_FALSE(never_reads->Finish().ok());
}

TEST_F(SlowReaderTest, AClientThatDoesNotReadIsEndedAndReportedWhy) {
  const auto worker = Connect();
  worker->set_logprobs(20);
  grpc::ClientContext context;
  v1::GenerateRequest request = Request(50000);
  request.set_logprobs(20);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));  // and then no more, so that the connection's windows fill up
  AwaitRunning(1);
  AwaitRunning(0);  // the engine has ended it
  int tokens = message.token_ids_size();
  while (reader->Read(&message)) tokens += message.token_ids_size();
  EXPECT_LT(tokens, 50000);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(rpc::ViewError(status).reason, "SLOW_READER");
}

TEST_F(ServerTest, DrainWaitsForRunningRequestsOnly) {
  const auto worker = Connect();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(2000));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  std::thread drain([&] { server_->Drain(); });
  size_t tokens = static_cast<size_t>(message.token_ids_size());
  while (reader->Read(&message)) tokens += static_cast<size_t>(message.token_ids_size());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 2000u);
  drain.join();
  grpc::ClientContext late;
  const auto refused = stub_->Generate(&late, Request(1));
  EXPECT_FALSE(refused->Read(&message));
  EXPECT_EQ(rpc::ViewError(refused->Finish()).reason, "DRAINING");
}

}  // namespace
}  // namespace switchyard::server
