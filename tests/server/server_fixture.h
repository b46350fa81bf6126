// The whole server in this process, over loopback, with a worker that speaks the real link but computes nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/link/link_protocol.h"
#include "server/server.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

inline constexpr char kToken[] = "0123456789abcdef";

// A fake worker: registers, joins, and answers each plan with the next letters; `Hold` stops the answers.
class LinkWorker {
 public:
  LinkWorker(std::shared_ptr<grpc::Channel> channel, const std::string& token)
      : stub_(v1::WorkerService::NewStub(std::move(channel))), stream_(stub_->Link(&context_)) {
    v1::LinkRequest hello;
    v1::Register* out = hello.mutable_register_();
    out->set_protocol_version(link::kProtocolVersion);
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
  // Sends each token with that many alternatives, so that messages grow.
  void set_logprobs(int count) { logprobs_ = count; }
  // Sends a part of a result that never comes; returns false if the link is over.
  bool SendPart() {
    absl::MutexLock lock(&mu_);
    v1::LinkRequest message;
    message.mutable_step_part()->add_logprobs();
    return !over_ && stream_->Write(message);
  }
  // Sends logprobs of a prompt's rows before each result, in parts of that many positions.
  void set_parts(int positions) { parts_ = positions; }
  // Returns how the server ended the link.
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
        SendParts(command.step_plan());
        Answer(command.step_plan(), reply.mutable_step_result());
        Write(reply);
      }
    }
    const grpc::Status status = stream_->Finish();
    absl::MutexLock lock(&mu_);
    status_ = status;
    over_ = true;
  }
  void SendParts(const v1::StepPlan& plan) {
    for (int item = 0; parts_ > 0 && item < plan.items_size(); ++item) {
      // The rows whose next token is the prompt's, so without the row that is sampled.
      const int rows = plan.items(item).num_query() - (plan.items(item).sample() ? 1 : 0);
      for (int row = 0; row < rows; row += parts_) {
        v1::LinkRequest message;
        v1::StepPart* part = message.mutable_step_part();
        part->set_step(plan.step());
        part->set_group_epoch(plan.group_epoch());
        part->set_item(item);
        for (int i = row; i < std::min(row + parts_, rows); ++i) {
          part->add_prompt_logprobs()->mutable_chosen()->set_token(i % 26 + 'a');
        }
        Write(message);
      }
    }
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
  std::atomic<int> parts_{0};
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
    channel_ = ChannelTo(server_->port());
    admin_channel_ = ChannelTo(server_->admin_port());
    worker_channel_ = ChannelTo(server_->worker_port());
    stub_ = v1::InferenceService::NewStub(channel_);
  }
  virtual void Configure(ServerConfig*) {}
  static std::shared_ptr<grpc::Channel> ChannelTo(int port) {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  }
  std::unique_ptr<LinkWorker> Connect() {
    auto worker = std::make_unique<LinkWorker>(worker_channel_, kToken);
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
  // Waits until this many requests run or wait.
  void AwaitRequests(int wanted) {
    v1::GetLoadResponse load;
    const auto held = [&load] { return load.running_requests() + load.waiting_requests(); };
    load.set_running_requests(-1);
    for (const absl::Time end = absl::Now() + absl::Seconds(60); held() != wanted;) {
      ASSERT_LT(absl::Now(), end) << held() << " requests are there";
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
  // Sends raw bytes to a method.  channel: null: that of users.
  grpc::Status Call(const std::string& method, const std::string& bytes,
                    const std::string& service = "/switchyard.v1.InferenceService/",
                    std::shared_ptr<grpc::Channel> channel = nullptr) {
    grpc::GenericStub stub(channel == nullptr ? channel_ : std::move(channel));
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, service + method, grpc::StubOptions(), &request, &response, [&](grpc::Status result) {
      status = result;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  model::TempDir dir_;
  ServerConfig config_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_, admin_channel_, worker_channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

}  // namespace switchyard::server
