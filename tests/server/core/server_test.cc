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
#include "proto/support/errors.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "tests/server/core/tiny_text.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";

// Registers, joins, and answers each plan with the next letters; `Hold` stops the answers.
class LinkWorker {
 public:
  LinkWorker(std::shared_ptr<grpc::Channel> channel, const std::string& token)
      : stub_(v1::WorkerService::NewStub(std::move(channel))), stream_(stub_->Link(&context_)) {
    v1::LinkRequest hello;
    v1::Register* out = hello.mutable_register_();
    out->set_protocol_version(1);
    out->set_incarnation(absl::StrCat("w", reinterpret_cast<uintptr_t>(this)));
    out->set_join_token(token);
    out->set_local_index(-1);
    out->mutable_model()->set_vocab_size(kFar);
    out->mutable_model()->set_context(100000);
    out->mutable_model()->add_eos_token_ids(kEnd);
    Write(hello);
    reads_ = std::thread([this] { Read(); });
    heart_ = std::thread([this] {
      absl::MutexLock lock(&mu_);
      while (!mu_.AwaitWithTimeout(absl::Condition(&over_), absl::Milliseconds(100))) {
        v1::LinkRequest beat;
        beat.mutable_heartbeat();
        stream_->Write(beat);
      }
    });
  }
  ~LinkWorker() {
    context_.TryCancel();
    reads_.join();
    heart_.join();
  }

  void Hold() { hold_ = true; }
  // Each token comes with that many alternatives: messages grow.
  void set_logprobs(int count) { logprobs_ = count; }
  // How the server ended the link.
  grpc::Status End() {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&over_), absl::Seconds(60)));
    return status_;
  }
  std::string store_token() {
    absl::MutexLock lock(&mu_);
    const auto known = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !store_token_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&known), absl::Seconds(60)));
    return store_token_;
  }

 private:
  void Write(const v1::LinkRequest& message) {
    absl::MutexLock lock(&mu_);
    stream_->Write(message);
  }
  void Read() {
    v1::LinkResponse command;
    while (stream_->Read(&command)) {
      v1::LinkRequest reply;
      if (command.has_join_group()) {
        absl::MutexLock lock(&mu_);
        store_token_ = command.join_group().store_token();
        reply.mutable_group_ready()->set_epoch(command.join_group().epoch());
        reply.mutable_group_ready()->set_num_kv_blocks(10000);
        stream_->Write(reply);
      } else if (command.has_step_plan() && !hold_) {
        Answer(command.step_plan(), reply.mutable_step_result());
        Write(reply);
      }
    }
    const grpc::Status status = stream_->Finish();
    absl::MutexLock lock(&mu_);
    status_ = status;
    over_ = true;
  }
  void Answer(const v1::StepPlan& plan, v1::StepResult* result) {
    result->set_step(plan.step());
    result->set_group_epoch(plan.group_epoch());
    for (const v1::StepItem& item : plan.items()) {
      v1::ItemResult* out = result->add_items();
      if (!item.sample()) continue;
      // The prompts of these tests have three tokens.
      out->add_tokens('a' + (item.start_pos() + item.num_query() - 3) % 26);
      if (logprobs_ < 0) continue;
      v1::StepPositionLogprobs* position = out->add_logprobs();
      position->mutable_chosen()->set_logprob(-1);
      for (int i = 0; i < logprobs_; ++i) position->add_top()->set_logprob(-2);
    }
  }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::LinkRequest, v1::LinkResponse>> stream_;
  std::atomic<bool> hold_{false};
  std::atomic<int> logprobs_{-1};
  absl::Mutex mu_;  // also: one writer at a time
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::string store_token_ ABSL_GUARDED_BY(mu_);
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread reads_;
  std::thread heart_;
};

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("config.json", "{}");
    dir_.Write("tokenizer.json", TinyTokenizerJson());
    config_.model = dir_.path();
    config_.served_model_name = "tiny";
    config_.port = 0;
    config_.metrics_port = -1;
    config_.local_workers = 0;
    config_.workers = 1;
    config_.join_token = kToken;
    config_.batching.max_model_len = 0;
    Configure(&config_);
    ASSERT_TRUE(config_.Finish().ok());
    auto server = Server::Start(config_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
    stub_ = v1::InferenceService::NewStub(channel_);
  }
  virtual void Configure(ServerConfig*) {}
  std::unique_ptr<LinkWorker> Connect() {
    auto worker = std::make_unique<LinkWorker>(channel_, kToken);
    v1::GetLoadResponse load;
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end && !load.ready();) {
      grpc::ClientContext context;
      EXPECT_TRUE(stub_->GetLoad(&context, v1::GetLoadRequest(), &load).ok());
    }
    EXPECT_TRUE(load.ready()) << load.not_ready_reason();
    return worker;
  }
  void AwaitRunning(int wanted) {
    v1::GetLoadResponse load;
    load.set_running_requests(-1);
    for (const absl::Time end = absl::Now() + absl::Seconds(60); load.running_requests() != wanted;) {
      ASSERT_LT(absl::Now(), end) << load.running_requests() << " requests run";
      grpc::ClientContext context;
      ASSERT_TRUE(stub_->GetLoad(&context, v1::GetLoadRequest(), &load).ok());
    }
  }
  static v1::GenerateRequest Request(int max_tokens) {
    v1::GenerateRequest request;
    for (int id : {1, 2, 3}) request.mutable_token_ids()->add_ids(id);
    request.set_max_tokens(max_tokens);
    return request;
  }
  // Sends raw bytes to a method.
  grpc::Status Call(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, "/switchyard.v1.InferenceService/" + method, grpc::StubOptions(), &request, &response,
                   [&](grpc::Status result) {
                     status = result;
                     done.Notify();
                   });
    done.WaitForNotification();
    return status;
  }

  TempDir dir_;
  ServerConfig config_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

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
    EXPECT_EQ(ViewError(status).reason, "BAD_REQUEST_BYTES");
  }
  EXPECT_EQ(Call("Nothing", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const grpc::Status loading = Call("Tokenize", "");
  EXPECT_EQ(loading.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ViewError(loading).reason, "MODEL_LOADING");
  EXPECT_THAT(loading.error_message(), HasSubstr("model tiny is LOADING: 0 of 1 workers"));
  EXPECT_EQ(Call("GetLoad", std::string(5 << 20, 'a')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerTest, AStrangerIsTurnedAwayFromTheLink) {
  LinkWorker stranger(channel_, "guess");
  EXPECT_EQ(stranger.End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// A link as a stranger may open it: says what it is told to, and how the server ended it.
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

TEST_F(ServerTest, ALinkThatDoesNotRegisterIsEndedSoon) {
  const absl::Time start = absl::Now();
  const grpc::Status silent = LinkEnd(channel_, {});
  EXPECT_EQ(silent.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(silent.error_message(), "the link did not register within 5s");
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_F(ServerTest, ALinkBeginsWithItsOneRegistration) {
  v1::LinkRequest beat, hello;
  beat.mutable_heartbeat();
  hello.mutable_register_()->set_protocol_version(1);
  hello.mutable_register_()->set_incarnation("twice");
  hello.mutable_register_()->set_join_token(kToken);
  for (const v1::LinkRequest& first : {beat, v1::LinkRequest()}) {
    const grpc::Status status = LinkEnd(channel_, {first});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "a link begins with its registration");
  }
  const grpc::Status twice = LinkEnd(channel_, {hello, hello});
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(twice.error_message(), "a second registration on one link");
  v1::LinkRequest old = hello;
  old.mutable_register_()->set_protocol_version(0);
  EXPECT_EQ(LinkEnd(channel_, {old}).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServerTest, ALostWorkerEndsTheStreamAndAnotherTakesOver) {
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
  EXPECT_EQ(ViewError(status).reason, "WORKER_LOST");
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
    waited = v1::WorkerService::NewStub(channel_)->StoreGet(&get, request, &response);
  });
  const absl::Time start = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ViewError(status).reason, "DRAINING");
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

// It keeps its connection and never reads: not even the end, which gRPC holds for it.  Its stream's place is free again
// all the same.
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
    const bool expected = next.ok() || ViewError(next).reason == "TOO_MANY_STREAMS";
    EXPECT_TRUE(expected) << next.error_message();
  }
  EXPECT_TRUE(next.ok()) << "the place is never free: " << next.error_message();
  for (v1::GenerateResponse message; never_reads->Read(&message);) {
  }
  EXPECT_FALSE(never_reads->Finish().ok());
}

TEST_F(SlowReaderTest, AClientThatDoesNotReadIsEndedAndToldWhy) {
  const auto worker = Connect();
  worker->set_logprobs(20);
  grpc::ClientContext context;
  v1::GenerateRequest request = Request(50000);
  request.set_logprobs(20);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));  // and no more: the windows of the connection fill up
  AwaitRunning(1);
  AwaitRunning(0);  // the engine let go of it
  int tokens = message.token_ids_size();
  while (reader->Read(&message)) tokens += message.token_ids_size();
  EXPECT_LT(tokens, 50000);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ViewError(status).reason, "SLOW_READER");
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
  EXPECT_EQ(ViewError(refused->Finish()).reason, "DRAINING");
}

}  // namespace
}  // namespace switchyard
