#include "tests/e2e/training_fixture.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// With the demo model's tokenizer.
void WriteArchitecture(const fs::path& folder, const nlohmann::json& config) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(1);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    fs::copy_file(fs::path(kDemoModel) / file, folder / file);
  }
}

// The demo model's, small enough that a step takes milliseconds.
nlohmann::json TinyArchitecture() {
  nlohmann::json config = nlohmann::json::parse(ReadFile(fs::path(kDemoModel) / "config.json"));
  config["hidden_size"] = 32;
  config["num_hidden_layers"] = 2;
  config["num_attention_heads"] = 2;
  config["num_key_value_heads"] = 1;
  config["head_dim"] = 16;
  config["num_experts"] = 4;
  config["moe_intermediate_size"] = 32;
  config["max_window_layers"] = 2;
  return config;
}

nlohmann::json TinyGpt2() {
  return {{"architectures", {"Gpt2MoeForCausalLM"}},
          {"model_type", "gpt2_moe"},
          {"vocab_size", 6144},
          {"hidden_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"max_position_embeddings", 256},
          {"hidden_act", "gelu_new"},
          {"decoder_sparse_step", 2},
          {"intermediate_size", 48},
          {"moe_intermediate_size", 32},
          {"num_experts", 4},
          {"num_experts_per_tok", 2},
          {"norm_topk_prob", true},
          {"topk_method", "noaux_tc"},
          {"bos_token_id", 0},
          {"eos_token_id", 2}};
}

void WriteTexts(const fs::path& file) {
  std::ofstream out(file);
  for (const char* text :
       {"README.md", "workers/train/README.md", "workers/comm/README.md", "workers/checkpoint/FORMAT.md",
        "server/engine/step_loop.cc", "workers/train/step/trainer.cc", "workers/train/step/trainer_options.cc"}) {
    out << nlohmann::json({{"text", ReadFile(text)}}).dump() << "\n";
  }
}

}  // namespace

TrainingServer::TrainingServer(int train_workers, std::vector<std::string> flags, int serving_workers)
    : train_workers_(train_workers), serving_workers_(serving_workers), flags_(std::move(flags)) {
  std::string pattern = (fs::temp_directory_path() / "training.XXXXXX").string();
  root_ = mkdtemp(pattern.data());
  fs::create_directories(root_ / "datasets");
  fs::create_directories(root_ / "checkpoints");
  fs::copy(kDemoModel, root_ / "checkpoints/demo");
  WriteArchitecture(root_ / "checkpoints/tiny", TinyArchitecture());
  WriteArchitecture(root_ / "checkpoints/gpt2", TinyGpt2());
  WriteTexts(root_ / "datasets/text.jsonl");
}

TrainingServer::~TrainingServer() {
  server_.reset();
  fs::remove_all(root_);
}

bool TrainingServer::Start() {
  TestServer::Options options = {.model = serving_workers_ > 0 ? kDemoModel : "", .workers = serving_workers_};
  options.flags = {absl::StrCat("--local_train_workers=", train_workers_), "--train_threads=1",
                   absl::StrCat("--dataset_root=", (root_ / "datasets").string()),
                   absl::StrCat("--checkpoint_root=", (root_ / "checkpoints").string())};
  options.flags.insert(options.flags.end(), flags_.begin(), flags_.end());
  server_ = TestServer::Start(options);
  return server_ != nullptr;
}

void TrainingServer::Kill() {
  server_->process().Signal(SIGKILL);
  server_->process().Wait(kStartLimit);
  server_.reset();
}

v1::JobSpec TrainingServer::TinySpec() {
  v1::JobSpec spec;
  spec.set_architecture("tiny");
  spec.add_datasets("text.jsonl");
  spec.set_steps(24);
  spec.set_sequence_length(32);
  spec.set_batch_sequences(4);
  spec.set_workers(2);
  spec.mutable_optimizer()->set_learning_rate(3e-3);
  spec.mutable_optimizer()->set_warmup_steps(4);
  spec.mutable_checkpoints()->set_every_steps(4);
  spec.mutable_checkpoints()->set_keep_last(2);
  spec.set_seed(7);
  return spec;
}

std::unique_ptr<v1::TrainingService::Stub> TrainingServer::Stub() {
  return v1::TrainingService::NewStub(server_->admin_client().channel());
}

absl::StatusOr<v1::Job> TrainingServer::Submit(const v1::JobSpec& spec, const std::string& request_id) {
  grpc::ClientContext context;
  v1::SubmitJobRequest request;
  request.set_request_id(request_id);
  *request.mutable_spec() = spec;
  v1::SubmitJobResponse response;
  if (const grpc::Status end = Stub()->SubmitJob(&context, request, &response); !end.ok())
    return client::FromGrpcStatus(end, server_->admin_address());
  return response.job();
}

absl::StatusOr<v1::Job> TrainingServer::Fork(const v1::ForkJobRequest& request) {
  grpc::ClientContext context;
  v1::ForkJobResponse response;
  if (const grpc::Status end = Stub()->ForkJob(&context, request, &response); !end.ok())
    return client::FromGrpcStatus(end, server_->admin_address());
  return response.job();
}

absl::StatusOr<v1::Job> TrainingServer::Get(const std::string& id) {
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_id(id);
  v1::GetJobResponse response;
  if (const grpc::Status end = Stub()->GetJob(&context, request, &response); !end.ok())
    return client::FromGrpcStatus(end, server_->admin_address());
  return response.job();
}

absl::Status TrainingServer::Pause(const std::string& id) {
  grpc::ClientContext context;
  v1::PauseJobRequest request;
  request.set_id(id);
  v1::PauseJobResponse response;
  return client::FromGrpcStatus(Stub()->PauseJob(&context, request, &response), server_->admin_address());
}

absl::Status TrainingServer::Resume(const std::string& id) {
  grpc::ClientContext context;
  v1::ResumeJobRequest request;
  request.set_id(id);
  v1::ResumeJobResponse response;
  return client::FromGrpcStatus(Stub()->ResumeJob(&context, request, &response), server_->admin_address());
}

absl::Status TrainingServer::Cancel(const std::string& id) {
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  request.set_id(id);
  v1::CancelJobResponse response;
  return client::FromGrpcStatus(Stub()->CancelJob(&context, request, &response), server_->admin_address());
}

v1::Job TrainingServer::WaitUntilIn(const std::string& id, v1::JobState state) {
  return WaitFor(id, [state](const v1::Job& job) {
    return job.state() == state || job.state() == v1::JOB_STATE_FAILED || job.state() == v1::JOB_STATE_SUCCEEDED ||
           job.state() == v1::JOB_STATE_CANCELLED;
  });
}

std::vector<pid_t> TrainingServer::TrainWorkerPids() {
  std::vector<pid_t> pids;
  const std::string server = absl::StrCat("\nPPid:\t", server_->process().pid(), "\n");
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    if (!absl::StrContains(ReadFile(entry.path() / "status"), server)) continue;
    if (absl::StrContains(ReadFile(entry.path() / "cmdline"), "--role=train")) pids.push_back(pid);
  }
  return pids;
}

std::map<std::string, std::string> TrainingServer::Contents(const fs::path& checkpoint) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename();
    if (absl::EndsWith(name, ".safetensors")) contents[name] = ReadFile(entry.path());
  }
  return contents;
}

}  // namespace switchyard
