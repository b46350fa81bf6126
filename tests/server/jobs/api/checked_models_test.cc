// SubmitJob checks the job's model by the workers' program, here a script.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "scheduler/base/io/root_dir.h"
#include "server/jobs/spec/spec_check.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

class CheckedModelsTest : public TrainingTest {
 protected:
  void Configure(ServerConfig* config) override { config->worker_binary = base_.path() + "/worker"; }
  void WorkerAnswers(const std::string& script) {
    std::ofstream(base_.path() + "/worker") << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod((base_.path() + "/worker").c_str(), 0700), 0);
  }
  // A request of a job that begins from this checkpoint, which it makes.
  v1::SubmitJobRequest FromCheckpoint(const std::string& step) {
    const std::string folder = "models/" + step;
    for (const char* name : {"config.json", "tokenizer.json", "special_tokens_map.json"}) {
      std::filesystem::create_directories(base_.path() + "/" + folder);
      std::filesystem::copy_file(base_.path() + "/models/demo/" + name, base_.path() + "/" + folder + "/" + name);
    }
    base_.Write(folder + "/model.safetensors", "weights");
    base_.Write(folder + "/MANIFEST.json", "{}");
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->clear_architecture();
    request.mutable_spec()->set_base_checkpoint(step);
    return request;
  }
  bool IsKept(const std::string& step) const {
    return std::filesystem::exists(base_.path() + "/models/" + step + "/KEEP");
  }
  void ExpectRefused(grpc::StatusCode code, const std::string& message) {
    v1::SubmitJobResponse response;
    const grpc::Status status = Submit(Request(), &response);
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(rpc::ViewError(status).reason, "BAD_FILE");
    EXPECT_EQ(status.error_message(), message);
  }
};

TEST_F(CheckedModelsTest, WhatWorkersRefuseIsRefusedAtOnce) {
  WorkerAnswers(R"(echo '{"code":12,"error":"config.json: hidden_act: unknown"}'; exit 2)");
  ExpectRefused(grpc::StatusCode::INVALID_ARGUMENT, "spec.architecture: \"demo\": config.json: hidden_act: unknown");
  WorkerAnswers(R"(echo '{"code":5,"error":"\"demo\": not there"}'; exit 2)");
  ExpectRefused(grpc::StatusCode::NOT_FOUND, "spec.architecture: \"demo\": not there");
}

TEST_F(CheckedModelsTest, TheirFactsCount) {
  WorkerAnswers(
      R"(echo '{"architecture":"M","context":64,"vocab":299,"experts":4,"router_bias":false,"parameters":9}')");
  ExpectRefused(grpc::StatusCode::INVALID_ARGUMENT,
                "spec.datasets[0]: \"a.bin\": made for a vocabulary of 300, the model has 299");
}

TEST_F(CheckedModelsTest, WhereNobodyCanSayItIsJudgedByItsConfig) {
  WorkerAnswers("exit 2");
  SubmitOk(Request());
}

// Its client goes by that; data in tokens and in text are alike.
TEST_F(CheckedModelsTest, ACallThatIsCancelledMeanwhileSubmitsNothing) {
  const absl::StatusOr<RootDir> datasets = RootDir::Open(config_.dataset_root, "the dataset root"),
                                checkpoints = RootDir::Open(config_.checkpoint_root, "the checkpoint root");
  ASSERT_TRUE(datasets.ok() && checkpoints.ok()) << datasets.status() << checkpoints.status();
  jobs::JobSpec spec = {.architecture = "demo", .steps = 10, .sequence_length = 16, .batch_sequences = 4};
  for (const char* name : {"a.bin", "sub/text.jsonl"}) {
    spec.datasets = {name};
    bool cancelled = false;
    const auto check = [&](bool cancels) {
      const CheckModelFn check_model = [&cancelled, cancels](const jobs::JobSpec&) {
        cancelled = cancels;
        return absl::UnavailableError("no answer");
      };
      return CheckSpecFiles(spec, *datasets, *checkpoints, check_model, [&cancelled] { return cancelled; }).status();
    };
    EXPECT_TRUE(check(/*cancels=*/false).ok()) << name << ": " << check(false);
    EXPECT_TRUE(absl::IsCancelled(check(/*cancels=*/true))) << name;
  }
}

// The job that made it would remove it when it has newer ones.
TEST_F(CheckedModelsTest, ACheckpointFromWhichAJobBeginsStays) {
  WorkerAnswers("exit 2");
  SubmitOk(FromCheckpoint("job-1/step-00000004"));
  EXPECT_TRUE(IsKept("job-1/step-00000004"));
}

// What is certain before files are looked at is said at once, and nothing is left behind.
TEST_F(CheckedModelsTest, AServerThatTakesNoJobsKeepsNoCheckpoint) {
  WorkerAnswers(R"(echo '{"code":12,"error":"is not to be asked"}'; exit 2)");
  const v1::SubmitJobRequest request = FromCheckpoint("job-1/step-00000004");
  server_->Drain();
  v1::SubmitJobResponse response;
  const grpc::Status refused = Submit(request, &response);
  EXPECT_EQ(rpc::ViewError(refused).reason, "DRAINING") << refused.error_message();
  EXPECT_FALSE(IsKept("job-1/step-00000004"));
}

}  // namespace
}  // namespace switchyard::server
