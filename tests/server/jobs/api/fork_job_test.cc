// ForkJob over the wire: what it makes, refuses and keeps over a restart of the server, and whose jobs a key may fork.
#include <filesystem>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "tests/server/jobs/training_fixture.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

class ForkJobTest : public TrainingTest {
 protected:
  // A pending job whose folder has checkpoints of steps 4 and 8, as an earlier server may have left it.
  std::string Parent() {
    const std::string id = SubmitOk(Request());
    Save(id, 4);
    Save(id, 8);
    return id;
  }
  void Save(const std::string& id, int step) {
    const std::string folder = absl::StrFormat("models/%s/step-%08d", id, step);
    std::filesystem::create_directories(base_.path() + "/" + folder);
    base_.Write(folder + "/MANIFEST.json", "manifest");
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(base_.path() + "/models/" + name); }
  static v1::ForkJobRequest Of(const std::string& id) {
    v1::ForkJobRequest request;
    request.set_id(id);
    return request;
  }
  grpc::Status Fork(const v1::ForkJobRequest& request, v1::ForkJobResponse* response, const std::string& key = "") {
    return stub_->ForkJob(ContextOf(key).get(), request, response);
  }
  v1::Job ForkOk(const v1::ForkJobRequest& request) {
    v1::ForkJobResponse response;
    const grpc::Status status = Fork(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  void Refused(const v1::ForkJobRequest& request, grpc::StatusCode code, const std::string& reason,
               const std::string& message) {
    v1::ForkJobResponse response;
    const grpc::Status status = Fork(request, &response);
    EXPECT_EQ(status.error_code(), code) << message;
    EXPECT_EQ(rpc::ViewError(status).reason, reason) << message;
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  }
};

TEST_F(ForkJobTest, AForkIsAJobOfItsOwnAlsoOverARestart) {
  const std::string parent = Parent();
  v1::ForkJobRequest request = Of(parent);
  request.set_request_id("once");
  request.mutable_changes()->set_steps(30);
  request.mutable_changes()->mutable_optimizer()->set_learning_rate(0.5);
  const v1::Job fork = ForkOk(request);
  EXPECT_EQ(fork.state(), v1::JOB_STATE_PENDING);
  EXPECT_EQ(fork.origin().job(), parent);
  EXPECT_EQ(fork.origin().step(), 8);
  EXPECT_EQ(fork.checkpoint().folder(), fork.id() + "/step-00000008");
  EXPECT_EQ(fork.spec().steps(), 30);
  EXPECT_EQ(fork.spec().architecture(), "demo");
  EXPECT_TRUE(Exists(fork.checkpoint().folder() + "/MANIFEST.json"));
  EXPECT_FALSE(Exists(fork.id() + "/FORKING"));
  std::filesystem::remove_all(base_.path() + "/models/" + parent);

  // The folder of a fork that the server did not live to journal.
  const std::string half = "job-00000000000a";
  std::filesystem::create_directories(base_.path() + "/models/" + half);
  base_.Write("models/" + half + "/FORKING", "a fork of " + parent + " at step 8\n");
  StopServer();
  StartServer();
  EXPECT_EQ(Get(fork.id()).origin().job(), parent);
  StopServer();  // the pool has removed what was to be removed
  EXPECT_FALSE(Exists(half));
  StartServer();
  Connect();
  const v1::StartTraining start = Connect()->assignment();  // the parent's turn is first
  EXPECT_EQ(start.job_id(), parent);
  EXPECT_FALSE(start.has_origin());
  for (const auto& trainer : trainers_) trainer->SayEnded(v1::TRAINING_OUTCOME_FAILED, absl::DataLossError("gone"));
  const v1::StartTraining forked = trainers_[0]->AwaitAssignment(2);
  EXPECT_EQ(forked.job_id(), fork.id());
  EXPECT_EQ(forked.origin().step(), 8);
  EXPECT_EQ(forked.attempt(), 1);
  EXPECT_EQ(forked.spec().optimizer().learning_rate(), 0.5);
}

TEST_F(ForkJobTest, PackedTextOfTheParentIsEnough) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += " some words of text";
  base_.Write("data/sub/text.jsonl", "{\"text\": \"" + text + "\"}\n");
  v1::SubmitJobRequest submit = Request();
  submit.mutable_spec()->clear_datasets();
  submit.mutable_spec()->add_datasets("sub/text.jsonl");
  const std::string parent = SubmitOk(submit);
  Connect();
  Connect()->assignment();  // its text is packed
  Save(parent, 4);
  std::filesystem::remove(base_.path() + "/data/sub/text.jsonl");
  const v1::Job fork = ForkOk(Of(parent));
  EXPECT_TRUE(Exists(fork.id() + "/datasets.bin"));
  v1::ForkJobRequest other = Of(parent);
  other.mutable_changes()->set_sequence_length(9);  // is packed again, to count its batches
  Refused(other, grpc::StatusCode::NOT_FOUND, "BAD_FILE", "spec.datasets[0]: ");
}

TEST_F(ForkJobTest, ARepeatedRequestForksOnce) {
  const std::string parent = Parent();
  v1::ForkJobRequest request = Of(parent);
  request.set_request_id("once");
  const v1::Job fork = ForkOk(request);
  Save(parent, 9);
  v1::ForkJobResponse again;
  ASSERT_TRUE(Fork(request, &again).ok());
  EXPECT_TRUE(again.existed());
  EXPECT_EQ(again.job().id(), fork.id());
  request.mutable_changes()->set_seed(3);
  Refused(request, grpc::StatusCode::ALREADY_EXISTS, "JOB_EXISTS", "of another spec, forked from " + parent);
  request.set_request_id("");
  EXPECT_TRUE(ForkOk(request).origin().other_data());
}

TEST_F(ForkJobTest, WhatCannotBeIsRefusedAndLeavesNothing) {
  const std::string parent = Parent();
  const auto folders = [&] {
    const std::filesystem::directory_iterator all(base_.path() + "/models");
    return std::distance(begin(all), end(all));
  };
  const auto before = folders();
  using enum grpc::StatusCode;
  Refused(Of("job-none"), NOT_FOUND, "JOB_NOT_FOUND", "no job has the id \"job-none\"");
  Refused(Of(""), INVALID_ARGUMENT, "BAD_FIELD", "id: is empty");
  v1::ForkJobRequest request = Of(parent);
  request.set_step(6);
  Refused(request, NOT_FOUND, "BAD_FIELD", "has no checkpoint of step 6, it has 8, 4");
  request.set_step(-1);
  Refused(request, INVALID_ARGUMENT, "BAD_FIELD", "step: -1 is outside [0, ");
  request = Of(parent);
  request.set_skip_batches(-1);
  Refused(request, INVALID_ARGUMENT, "BAD_FIELD", "skip_batches: -1 is outside [0, ");
  request = Of(parent);
  request.mutable_mask()->add_paths("speed");
  Refused(request, INVALID_ARGUMENT, "BAD_FIELD", "mask: \"speed\" names no field of a JobSpec");
  const auto change = [&](auto set, const std::string& message, const std::string& reason = "BAD_FIELD",
                          grpc::StatusCode code = INVALID_ARGUMENT) {
    v1::ForkJobRequest changed = Of(parent);
    set(changed.mutable_changes());
    Refused(changed, code, reason, message);
  };
  change([](auto* c) { c->set_architecture("x"); }, "spec.architecture: the parent's is \"demo\", wanted is \"x\"");
  change([](auto* c) { c->set_steps(8); }, "spec.steps: 8, but the fork begins after step 8");
  change([](auto* c) { c->add_datasets("none.bin"); }, "spec.datasets[0]: ", "BAD_FILE", NOT_FOUND);
  change([](auto* c) { c->set_workers(3); }, "batch_sequences: 4 cannot be dealt out to 3 workers");
  change([](auto* c) { c->set_workers(4); }, "spec.workers: needs 4 ranks", "TOO_FEW_WORKERS", FAILED_PRECONDITION);
  change([](auto* c) { c->set_sequence_length(65); }, "spec.sequence_length: 65 is beyond the model's context of 64");
  const std::string young = SubmitOk(Request());
  Refused(Of(young), FAILED_PRECONDITION, "JOB_STATE", young + " has no checkpoint to fork");
  EXPECT_EQ(folders(), before);
}

class ForkOwnersTest : public ForkJobTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->api_keys_file = WriteKeys(base_, KeyLine("tina", "trainer") + KeyLine("theo", "trainer") +
                                                 KeyLine("root", "admin") + KeyLine("ute", "user"));
  }
};

TEST_F(ForkOwnersTest, OneForksWhatOneMaySee) {
  v1::SubmitJobResponse submitted;
  ASSERT_TRUE(stub_->SubmitJob(ContextOf("tina").get(), Request(), &submitted).ok());
  const std::string id = submitted.job().id();
  Save(id, 8);
  v1::ForkJobResponse fork;
  const grpc::Status others = Fork(Of(id), &fork, "theo");
  EXPECT_EQ(others.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(others.error_message(), absl::StrCat("no job has the id \"", id, "\""));
  EXPECT_EQ(Fork(Of(id), &fork, "ute").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  for (const char* name : {"tina", "root"}) {
    ASSERT_TRUE(Fork(Of(id), &fork, name).ok()) << name;
    EXPECT_EQ(fork.job().owner(), name);
  }
}

}  // namespace
}  // namespace switchyard::server
