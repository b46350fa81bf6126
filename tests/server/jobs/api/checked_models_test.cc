// SubmitJob checks the job's model by the workers' program, here a script.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
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

// The job that made it would remove it when it has newer ones.
TEST_F(CheckedModelsTest, ACheckpointFromWhichAJobBeginsStays) {
  WorkerAnswers("exit 2");
  const std::string step = "job-1/step-00000004", folder = "models/" + step;
  for (const char* name : {"config.json", "tokenizer.json", "special_tokens_map.json"}) {
    std::filesystem::create_directories(base_.path() + "/" + folder);
    std::filesystem::copy_file(base_.path() + "/models/demo/" + name, base_.path() + "/" + folder + "/" + name);
  }
  base_.Write(folder + "/model.safetensors", "weights");
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->clear_architecture();
  request.mutable_spec()->set_base_checkpoint(step);
  base_.Write(folder + "/MANIFEST.json", "{}");
  SubmitOk(request);
  EXPECT_TRUE(std::filesystem::exists(base_.path() + "/" + folder + "/KEEP"));
}

}  // namespace
}  // namespace switchyard::server
