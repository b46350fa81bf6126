// The data of training jobs over real gRPC: how a spec and PackData name and pack them, named sets of evaluation, and
// data that do not do.  (States of jobs: training_service_test.cc.)
#include <filesystem>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "proto/support/errors.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

// A spec without the field is a journal's alone.
TEST_F(TrainingTest, DocumentsAreApartUnlessTheSpecSaysOtherwise) {
  v1::SubmitJobResponse response;
  v1::SubmitJobRequest request = Request();
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_EQ(response.job().spec().document_mask(), v1::DOCUMENT_MASK_ON);
  EXPECT_EQ(response.job().spec().packing(), v1::WINDOW_PACKING_BEST_FIT);
  request.mutable_spec()->set_packing(v1::WINDOW_PACKING_CONCATENATE);
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_EQ(response.job().spec().packing(), v1::WINDOW_PACKING_CONCATENATE);
  request.mutable_spec()->clear_packing();
  request.mutable_spec()->set_document_mask(v1::DOCUMENT_MASK_OFF);
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_EQ(response.job().spec().document_mask(), v1::DOCUMENT_MASK_OFF);
  EXPECT_EQ(response.job().spec().packing(), v1::WINDOW_PACKING_CONCATENATE);
}

// Without names a file of evaluation is a set, and the attempt knows of which set its files are.
TEST_F(TrainingTest, EvaluationHasNamedSets) {
  base_.Write("data/b.bin", TokenFileBytes(100));
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.set_request_id("sets");
  request.mutable_spec()->set_workers(1);
  request.mutable_spec()->add_evaluation("a.bin");
  request.mutable_spec()->add_evaluation("b.bin");
  v1::SubmitJobResponse response;
  ASSERT_TRUE(Submit(request, &response).ok());
  const std::string id = response.job().id();
  EXPECT_THAT(response.job().spec().evaluation_names(), testing::ElementsAre("a", "b"));
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_TRUE(response.existed());
  const v1::StartTraining assignment = trainer->assignment();
  ASSERT_EQ(assignment.evaluation_size(), 2);
  EXPECT_EQ(assignment.evaluation(1).name(), "b.bin");
  EXPECT_EQ(assignment.evaluation(1).set(), 1);
  trainer->SayStarted(0);
  trainer->SayStep(1, 3);
  v1::LinkRequest evaluated;
  evaluated.mutable_training_evaluated()->set_epoch(assignment.epoch());
  evaluated.mutable_training_evaluated()->set_best_step(1);
  v1::EvaluationResult* result = evaluated.mutable_training_evaluated()->mutable_result();
  result->set_step(1);
  for (int i = 0; i < 100; ++i) result->add_sets()->set_name(std::string(5000, 'x'));
  trainer->Say(evaluated);
  v1::Job job;
  while (!job.has_evaluation()) job = Get(id);
  EXPECT_EQ(job.evaluation().sets_size(), 64) << "no more than a spec may have";
  EXPECT_EQ(job.evaluation().sets(0).name().size(), 4096u);
  EXPECT_EQ(job.best_evaluation().step(), 1);
  request.mutable_spec()->add_evaluation_names("same");
  request.mutable_spec()->add_evaluation_names("same");
  request.set_request_id("one");
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_THAT(response.job().spec().evaluation_names(), testing::ElementsAre("same", "same"));
}

TEST_F(TrainingTest, TextIsPackedBeforeWorkersHearOfIt) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  request.mutable_spec()->set_datasets(0, "sub/text.jsonl");
  request.mutable_spec()->set_sequence_length(2);
  request.mutable_spec()->set_batch_sequences(1);
  const std::string id = SubmitOk(request);
  const v1::StartTraining assignment = trainer->assignment();
  ASSERT_EQ(assignment.data_size(), 1) << Get(id).ShortDebugString();
  EXPECT_EQ(assignment.data(0).root(), v1::TRAIN_DATA_ROOT_JOB);
  EXPECT_TRUE(std::filesystem::exists(base_.path() + "/models/" + id + "/" + assignment.data(0).name()));
}

// Text and tokens together are less than a batch, which is only known when the text is packed.
TEST_F(TrainingTest, MixedDataIsCountedTogether) {
  base_.Write("data/few.bin", TokenFileBytes(40));
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_packing(v1::WINDOW_PACKING_CONCATENATE);
  request.mutable_spec()->set_workers(1);
  request.mutable_spec()->set_datasets(0, "few.bin");
  request.mutable_spec()->add_datasets("sub/text.jsonl");
  const v1::Job job = AwaitState(SubmitOk(request), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(rpc::ReasonOf(rpc::FromRpcStatus(job.error())), v1::BAD_FILE);
  EXPECT_THAT(job.error().message(), testing::MatchesRegex("datasets: dataset has [4-6][0-9] tokens, batch needs 65"));
  request.mutable_spec()->add_datasets("few.bin");
  const std::string enough = SubmitOk(request);  // 80 and some
  EXPECT_EQ(trainer->assignment().job_id(), enough);
}

// Changed data: the job pauses with an error that says so, also after a restart of the server.
TEST_F(TrainingTest, DataThatChangedPauseAJob) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  trainer->SayStarted(0);
  trainer->SayEnded(v1::TRAINING_OUTCOME_BLOCKED, absl::FailedPreconditionError("datasets: a.bin: changed"));
  const auto check = [](const v1::Job& job) {
    EXPECT_EQ(job.error().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(job.error().message(), "datasets: a.bin: changed");
    EXPECT_EQ(rpc::ReasonOf(rpc::FromRpcStatus(job.error())), v1::DATASET_CHANGED);
    EXPECT_EQ(job.changes().rbegin()->reason(), "DATASET_CHANGED: datasets: a.bin: changed");
  };
  check(AwaitState(id, v1::JOB_STATE_PAUSED));
  StopServer();
  StartServer();
  check(AwaitState(id, v1::JOB_STATE_PAUSED));
  grpc::ClientContext context;
  v1::ResumeJobRequest resume;
  v1::ResumeJobResponse response;
  resume.set_id(id);
  ASSERT_TRUE(stub_->ResumeJob(&context, resume, &response).ok());
  EXPECT_FALSE(response.job().has_error());
  LinkTrainer* next = Connect();
  EXPECT_EQ(next->assignment().attempt(), 2);
}

TEST_F(TrainingTest, PackDataReportsHowFarItIsAndWhatItMade) {
  v1::PackDataRequest request;
  request.add_inputs("sub/text.jsonl");
  request.set_output("made.bin");
  grpc::ClientContext context;
  const auto stream = stub_->PackData(&context, request);
  v1::PackDataResponse response;
  while (stream->Read(&response)) continue;
  const grpc::Status status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.done());
  EXPECT_EQ(response.documents(), 1);
  EXPECT_GT(response.tokens(), 10);
  EXPECT_TRUE(std::filesystem::exists(base_.path() + "/data/made.bin"));
  for (const auto& [output, code] : {std::pair("made.bin", grpc::StatusCode::ALREADY_EXISTS),
                                     std::pair("../x.bin", grpc::StatusCode::INVALID_ARGUMENT),
                                     std::pair("x.txt", grpc::StatusCode::INVALID_ARGUMENT)}) {
    request.set_output(output);
    grpc::ClientContext again;
    const auto refused = stub_->PackData(&again, request);
    while (refused->Read(&response)) continue;
    EXPECT_EQ(refused->Finish().error_code(), code) << output;
  }
}

}  // namespace
}  // namespace switchyard::server
