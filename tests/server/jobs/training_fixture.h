// The whole server in this process, over loopback, with training workers that speak the real link but train nothing.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/link/link_protocol.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/jobs/token_format.h"
#include "server/server.h"
#include "switchyard/v1/training.grpc.pb.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

inline constexpr char kTrainToken[] = "0123456789abcdef";

// A fake training worker: registers, keeps the commands that it receives, and sends the reports that a test chooses.
class LinkTrainer {
 public:
  LinkTrainer(std::shared_ptr<grpc::Channel> channel, int index, const std::string& role = "train")
      : stub_(v1::WorkerService::NewStub(std::move(channel))), stream_(stub_->Link(&context_)) {
    v1::LinkRequest hello;
    v1::Register* out = hello.mutable_register_();
    out->set_protocol_version(link::kProtocolVersion);
    out->set_incarnation(absl::StrCat("t", index, "-", reinterpret_cast<uintptr_t>(this)));
    out->set_join_token(kTrainToken);
    out->set_local_index(-1);
    out->set_pid(1000 + index);
    out->set_role(role);
    Say(hello);
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
  ~LinkTrainer() {
    context_.TryCancel();
    reads_.join();
    heart_.join();
  }

  void Say(const v1::LinkRequest& message) {
    absl::MutexLock lock(&mu_);
    stream_->Write(message);
  }
  void SayStarted(int64_t step) {
    v1::LinkRequest message;
    message.mutable_training_started()->set_epoch(assignment().epoch());
    message.mutable_training_started()->set_step(step);
    Say(message);
  }
  void SayStep(int64_t step, double loss) {
    v1::LinkRequest message;
    message.mutable_training_step()->set_epoch(assignment().epoch());
    message.mutable_training_step()->mutable_progress()->set_step(step);
    message.mutable_training_step()->mutable_progress()->set_loss(loss);
    Say(message);
  }
  void SayEnded(v1::TrainingOutcome outcome, const absl::Status& status = absl::OkStatus()) {
    v1::LinkRequest message;
    message.mutable_training_ended()->set_epoch(assignment().epoch());
    message.mutable_training_ended()->set_outcome(outcome);
    message.mutable_training_ended()->set_code(static_cast<int>(status.code()));
    message.mutable_training_ended()->set_message(std::string(status.message()));
    Say(message);
  }
  // Waits for the count-th assignment; returns the newest.
  v1::StartTraining AwaitAssignment(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return assignments_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60))) << "no assignment " << count;
    return assignments_.empty() ? v1::StartTraining() : assignments_.back();
  }
  v1::StartTraining assignment() { return AwaitAssignment(1); }
  // Waits for the next command that is no assignment.
  v1::LinkResponse AwaitCommand() {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return commands_.size() > taken_; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60))) << "no command";
    return commands_.size() > taken_ ? commands_[taken_++] : v1::LinkResponse();
  }
  // Returns how the server ended the link.
  grpc::Status End() {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&over_), absl::Seconds(60)));
    return status_;
  }

 private:
  void Read() {
    v1::LinkResponse command;
    while (stream_->Read(&command)) {
      absl::MutexLock lock(&mu_);
      if (command.has_start_training()) {
        assignments_.push_back(command.start_training());
      } else if (!command.has_registered()) {
        commands_.push_back(command);
      }
    }
    const grpc::Status status = stream_->Finish();
    absl::MutexLock lock(&mu_);
    status_ = status;
    over_ = true;
  }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::LinkRequest, v1::LinkResponse>> stream_;
  absl::Mutex mu_;  // also: one writer at a time
  std::vector<v1::StartTraining> assignments_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::LinkResponse> commands_ ABSL_GUARDED_BY(mu_);
  size_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread reads_;
  std::thread heart_;
};

inline constexpr char kTinyConfig[] = R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
  "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 300, "max_position_embeddings": 64})";

inline constexpr char kTinySpecials[] = R"({"eos_token": "<|end|>"})";

// Returns a file of packed tokens: a document of `count` tokens.
inline std::string TokenFileBytes(int64_t count, int64_t vocab = 300) {
  jobs::TokenFileHeader header;
  header.vocab_size = vocab;
  header.num_tokens = count;
  header.num_documents = 1;
  std::string body(static_cast<size_t>(header.file_bytes() - header.tokens_at()), '\0');
  header.contents = Fnv1a(body);
  return jobs::EncodeTokenHeader(header) + body;
}

// The same with a mask in which only the `trained`-th token is trained (-1: none).
inline std::string MaskedFileBytes(int64_t count, int64_t trained = -1) {
  jobs::TokenFileHeader header;
  header.vocab_size = 300;
  header.num_tokens = count;
  header.num_documents = 1;
  header.masked = true;
  std::string body(static_cast<size_t>(header.file_bytes() - header.tokens_at()), '\0');
  if (trained >= 0)
    body[static_cast<size_t>(header.mask_at() - header.tokens_at() + trained / 8)] |= 1 << (trained % 8);
  header.contents = Fnv1a(body);
  return jobs::EncodeTokenHeader(header) + body;
}

class TrainingTest : public testing::Test {
 protected:
  void SetUp() override {
    base_.Write("config.json", kTinyConfig);
    base_.Write("tokenizer.json", TinyTokenizerJson());
    base_.Write("special_tokens_map.json", kTinySpecials);
    for (const char* folder : {"/data/sub", "/models/demo"}) std::filesystem::create_directories(base_.path() + folder);
    base_.Write("models/demo/config.json", kTinyConfig);
    base_.Write("models/demo/tokenizer.json", TinyTokenizerJson());
    base_.Write("models/demo/special_tokens_map.json", kTinySpecials);
    base_.Write("data/a.bin", TokenFileBytes(1000));
    base_.Write("data/sub/text.jsonl", "{\"text\": \"some words of text\"}\n");
    config_.model = base_.path();
    config_.served_model_name = "tiny";
    config_.port = 0;
    config_.metrics_port = -1;
    config_.local_workers = 0;
    config_.workers = 1;
    config_.join_token = kTrainToken;
    config_.train_workers = 2;
    config_.dataset_root = base_.path() + "/data";
    config_.checkpoint_root = base_.path() + "/models";
    Configure(&config_);
    const absl::Status finished = config_.Finish();
    ASSERT_TRUE(finished.ok()) << finished;
    StartServer();
  }
  virtual void Configure(ServerConfig*) {}
  void StartServer() {
    auto server = Server::Start(config_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->admin_port()), grpc::InsecureChannelCredentials());
    worker_channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->worker_port()), grpc::InsecureChannelCredentials());
    stub_ = v1::TrainingService::NewStub(channel_);
  }
  void StopServer() {
    trainers_.clear();
    server_->Stop();
    server_.reset();
  }
  LinkTrainer* Connect() {
    trainers_.push_back(std::make_unique<LinkTrainer>(worker_channel_, static_cast<int>(trainers_.size())));
    return trainers_.back().get();
  }

  static v1::SubmitJobRequest Request() {
    v1::SubmitJobRequest request;
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_architecture("demo");
    spec->add_datasets("a.bin");
    spec->set_steps(10);
    spec->set_sequence_length(16);
    spec->set_batch_sequences(4);
    spec->set_workers(2);
    return request;
  }
  grpc::Status Submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    grpc::ClientContext context;
    return stub_->SubmitJob(&context, request, response);
  }
  std::string SubmitOk(const v1::SubmitJobRequest& request) {
    v1::SubmitJobResponse response;
    const grpc::Status status = Submit(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    v1::GetJobResponse response;
    request.set_id(id);
    const grpc::Status status = stub_->GetJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  v1::Job AwaitState(const std::string& id, v1::JobState state) {
    v1::Job job;
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end && job.state() != state;) {
      job = Get(id);
    }
    EXPECT_EQ(job.state(), state) << job.ShortDebugString();
    return job;
  }

  model::TempDir base_;
  ServerConfig config_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_, worker_channel_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
  std::vector<std::unique_ptr<LinkTrainer>> trainers_;  // destroyed before the server, which would wait for their links
};

}  // namespace switchyard::server
