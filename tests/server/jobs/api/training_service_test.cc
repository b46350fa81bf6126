// Training jobs over real gRPC, with workers that speak the link.
#include "gmock/gmock.h"
#include "proto/support/errors.h"
#include "server/jobs/journal/job_store.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "tests/becomes.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

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

TEST_F(TrainingTest, ADeletedJobIsGoneWithItsFolder) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  const auto remove = [&](const std::string& job, v1::DeleteJobResponse* response) {
    grpc::ClientContext context;
    v1::DeleteJobRequest message;
    message.set_id(job);
    return stub_->DeleteJob(&context, message, response);
  };
  v1::DeleteJobResponse deleted;
  trainer->SayStarted(0);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  const grpc::Status early = remove(id, &deleted);
  EXPECT_EQ(early.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(early.error_message(), HasSubstr("only a job that has ended can be deleted"));
  trainer->SayEnded(v1::TRAINING_OUTCOME_FINISHED);
  AwaitState(id, v1::JOB_STATE_SUCCEEDED);
  std::filesystem::create_directories(base_.path() + "/models/" + id + "/step-00000010");
  base_.Write("models/" + id + "/step-00000010/model.safetensors", std::string(5000, 'x'));
  ASSERT_TRUE(remove(id, &deleted).ok());
  EXPECT_GE(deleted.freed_bytes(), 5000);
  EXPECT_FALSE(std::filesystem::exists(base_.path() + "/models/" + id));
  EXPECT_EQ(remove(id, &deleted).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(rpc::ViewError(remove("job-none", &deleted)).reason, "JOB_NOT_FOUND");
  EXPECT_EQ(remove("", &deleted).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// Killed between the journal and the folder: the next server removes what is left, and nothing else.
TEST_F(TrainingTest, TheNextServerRemovesTheFoldersOfDeletedJobs) {
  StopServer();
  const std::string left = base_.path() + "/models/job-0123456789ab", other = base_.path() + "/models/job-ba9876543210";
  for (const std::string& folder : {left, other}) {
    std::filesystem::create_directories(folder + "/step-00000010");
    std::ofstream(folder + "/step-00000010/model.safetensors") << "x";
  }
  {
    auto journal = JobStore::Open(base_.path() + "/models/jobs.sqlite");
    ASSERT_TRUE(journal.ok()) << journal.status();
    Job job;
    job.sequence = 1;
    job.id = "job-0123456789ab";
    ASSERT_TRUE((*journal)->Delete(job).ok());
  }
  StartServer();
  EXPECT_TRUE(Becomes([&] { return !std::filesystem::exists(left); }));
  EXPECT_TRUE(std::filesystem::exists(other)) << "it may be that of a job that the journal has forgotten";
  // (A server that stops between folder and journal leaves it to the next one.)
  EXPECT_TRUE(Becomes([&] {
    StopServer();
    const bool forgotten = (*JobStore::Open(base_.path() + "/models/jobs.sqlite"))->DeletedJobs()->empty();
    if (!forgotten) StartServer();
    return forgotten;
  }));
}

TEST_F(TrainingTest, AJobFromSubmitToItsEnd) {
  LinkTrainer* first = Connect();
  LinkTrainer* second = Connect();
  v1::SubmitJobRequest request = Request();
  request.set_request_id("once");
  const std::string id = SubmitOk(request);
  v1::SubmitJobResponse again;
  ASSERT_TRUE(Submit(request, &again).ok());
  EXPECT_TRUE(again.existed());
  EXPECT_EQ(again.job().id(), id);

  grpc::ClientContext watching;
  v1::WatchJobRequest watch;
  watch.set_id(id);
  const auto stream = stub_->WatchJob(&watching, watch);
  v1::WatchJobResponse seen;
  ASSERT_TRUE(stream->Read(&seen));

  LinkTrainer* rank0 = first->assignment().rank() == 0 ? first : second;
  const v1::StartTraining assignment = rank0->assignment();
  EXPECT_EQ(assignment.world(), 2);
  EXPECT_EQ(assignment.attempt(), 1);
  EXPECT_EQ(assignment.job_id(), id);
  EXPECT_EQ(assignment.spec().workers(), 2);
  ASSERT_EQ(assignment.data_size(), 1);
  EXPECT_EQ(assignment.data(0).name(), "a.bin");
  EXPECT_EQ(assignment.data(0).root(), v1::TRAIN_DATA_ROOT_DATASETS);
  // The attempt's rendezvous store is open, beside the serving group's.
  const auto workers = v1::WorkerService::NewStub(worker_channel_);
  grpc::ClientContext setting;
  v1::StoreSetRequest set;
  v1::StoreSetResponse done;
  set.set_store_token(assignment.store_token());
  set.set_key("k");
  EXPECT_TRUE(workers->StoreSet(&setting, set, &done).ok());

  first->SayStarted(0);
  second->SayStarted(0);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  rank0->SayStep(1, 3.5);
  while (seen.job().progress().step() < 1) ASSERT_TRUE(stream->Read(&seen));
  EXPECT_EQ(seen.job().progress().loss(), 3.5);
  first->SayEnded(v1::TRAINING_OUTCOME_FINISHED);
  second->SayEnded(v1::TRAINING_OUTCOME_FINISHED);
  while (stream->Read(&seen)) continue;
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(seen.job().state(), v1::JOB_STATE_SUCCEEDED);
  // The loss log is in the folder of the job's checkpoints.
  EXPECT_TRUE(std::filesystem::exists(base_.path() + "/models/" + id + "/log/steps.csv"));
  grpc::ClientContext late;
  EXPECT_EQ(workers->StoreSet(&late, set, &done).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// By the real clock, so the bounds hold on any machine: no more messages than the interval allows in the time that has
// passed, and the newest state comes.
TEST_F(TrainingTest, AWatchersIntervalThinsItsStream) {
  constexpr int kSteps = 100, kBriskMs = 100;
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  trainer->SayStarted(0);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  grpc::ClientContext contexts[3];
  const auto watch = [&](int which, int interval_ms) {
    v1::WatchJobRequest message;
    message.set_id(id);
    message.set_min_interval_ms(interval_ms);
    return stub_->WatchJob(&contexts[which], message);
  };
  const absl::Time begin = absl::Now();
  const auto every = watch(0, 0), brisk = watch(1, kBriskMs), hourly = watch(2, 3'600'000);
  v1::WatchJobResponse seen;
  ASSERT_TRUE(hourly->Read(&seen)) << "the job as it is";
  EXPECT_EQ(seen.job().progress().step(), 0);
  int num_every = 0, num_brisk = 0;
  for (int step = 1; step <= kSteps; ++step) {
    trainer->SayStep(step, 1);
    for (seen.Clear(); seen.job().progress().step() < step; ++num_every) ASSERT_TRUE(every->Read(&seen));
  }
  EXPECT_GE(num_every, kSteps);
  for (seen.Clear(); seen.job().progress().step() < kSteps; ++num_brisk) ASSERT_TRUE(brisk->Read(&seen));
  EXPECT_LE(num_brisk, 1 + (absl::Now() - begin) / absl::Milliseconds(kBriskMs));
  trainer->SayEnded(v1::TRAINING_OUTCOME_FINISHED);
  int num_hourly = 0;
  for (; hourly->Read(&seen); ++num_hourly) EXPECT_EQ(seen.job().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(num_hourly, 1) << "the last one is not held back";
  EXPECT_EQ(seen.job().progress().step(), kSteps);
  for (const auto& stream : {&every, &brisk}) {
    while ((*stream)->Read(&seen)) continue;
  }
}

TEST_F(TrainingTest, PauseResumeCancel) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  trainer->SayStarted(0);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  {
    grpc::ClientContext context;
    v1::PauseJobRequest pause;
    v1::PauseJobResponse response;
    pause.set_id(id);
    ASSERT_TRUE(stub_->PauseJob(&context, pause, &response).ok());
    EXPECT_EQ(response.job().state(), v1::JOB_STATE_PAUSING);
  }
  const v1::LinkResponse stop = trainer->AwaitCommand();
  EXPECT_EQ(stop.stop_training().kind(), v1::STOP_KIND_SAVE);
  EXPECT_EQ(stop.stop_training().epoch(), trainer->assignment().epoch());
  trainer->SayEnded(v1::TRAINING_OUTCOME_STOPPED);
  AwaitState(id, v1::JOB_STATE_PAUSED);
  {
    grpc::ClientContext context;
    v1::ResumeJobRequest resume;
    v1::ResumeJobResponse response;
    resume.set_id(id);
    ASSERT_TRUE(stub_->ResumeJob(&context, resume, &response).ok());
  }
  EXPECT_EQ(trainer->AwaitAssignment(2).attempt(), 2);
  trainer->SayStarted(3);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::CancelJobRequest cancel;
    v1::CancelJobResponse response;
    cancel.set_id(id);
    EXPECT_TRUE(stub_->CancelJob(&context, cancel, &response).ok()) << "the second asks for what is on its way";
  }
  EXPECT_EQ(trainer->AwaitCommand().stop_training().kind(), v1::STOP_KIND_SAVE);
  trainer->SayEnded(v1::TRAINING_OUTCOME_STOPPED);
  AwaitState(id, v1::JOB_STATE_CANCELLED);
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

TEST_F(TrainingTest, AFailureHasItsStatus) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  trainer->SayStarted(0);
  trainer->SayEnded(v1::TRAINING_OUTCOME_FAILED, absl::DataLossError("step 3: loss is not finite"));
  const v1::Job job = AwaitState(id, v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(job.error().message(), "step 3: loss is not finite");
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

TEST_F(TrainingTest, AServerAfterThisOneGoesOn) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  EXPECT_EQ(trainer->assignment().attempt(), 1);
  trainer->SayStarted(0);
  trainer->SayStep(4, 2);
  for (const absl::Time end = absl::Now() + absl::Seconds(60); Get(id).progress().step() < 4;) {
    ASSERT_LT(absl::Now(), end);
  }
  const int64_t epoch = trainer->assignment().epoch();
  const auto second = Server::Start(config_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << "two servers, one journal";
  StopServer();
  StartServer();
  trainer = Connect();
  EXPECT_EQ(trainer->assignment().attempt(), 2);
  EXPECT_GT(trainer->assignment().epoch(), epoch);
}

TEST_F(TrainingTest, ListPagesByState) {
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(SubmitOk(Request()));
  std::vector<std::string> seen;
  v1::ListJobsRequest request;
  request.set_page_size(2);
  request.add_states(v1::JOB_STATE_PENDING);
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    ASSERT_TRUE(stub_->ListJobs(&context, request, &response).ok());
    EXPECT_LE(response.jobs_size(), 2);
    for (const v1::Job& job : response.jobs()) seen.push_back(job.id());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(seen, testing::ElementsAre(ids[2], ids[1], ids[0]));
  request.set_page_token("x");
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  EXPECT_EQ(stub_->ListJobs(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
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

TEST_F(TrainingTest, EachKindOfWorkerKeepsToItsMessages) {
  LinkTrainer* trainer = Connect();
  v1::LinkRequest serving;
  serving.mutable_group_ready()->set_epoch(1);
  trainer->Say(serving);
  EXPECT_EQ(trainer->End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(trainer->End().error_message(), HasSubstr("a training worker says group_ready"));

  LinkTrainer server_of_requests(worker_channel_, 7, "");
  v1::LinkRequest training;
  training.mutable_training_step()->set_epoch(1);
  server_of_requests.Say(training);
  // If the engine was faster, it refuses a worker without a model.
  EXPECT_THAT(server_of_requests.End().error_code(),
              testing::AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::FAILED_PRECONDITION));

  LinkTrainer odd(worker_channel_, 8, "dance");
  EXPECT_THAT(odd.End().error_message(), HasSubstr("role \"dance\""));
}

TEST_F(TrainingTest, ADrainSavesFirst) {
  LinkTrainer* trainer = Connect();
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_workers(1);
  const std::string id = SubmitOk(request);
  trainer->SayStarted(0);
  AwaitState(id, v1::JOB_STATE_RUNNING);
  std::thread drain([this] { server_->Drain(); });
  EXPECT_EQ(trainer->AwaitCommand().stop_training().kind(), v1::STOP_KIND_SAVE);
  trainer->SayEnded(v1::TRAINING_OUTCOME_STOPPED);
  drain.join();
  const v1::Job job = Get(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_PENDING);
  EXPECT_EQ(job.changes(job.changes_size() - 1).reason(), "the server stops");
}

class WithoutTrainersTest : public TrainingTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->train_workers = 0;
    config->dataset_root = "";
    config->checkpoint_root = "";
  }
};

TEST_F(WithoutTrainersTest, ItSaysSo) {
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(Request(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "this server has no training workers (--local_train_workers)");
  EXPECT_EQ(rpc::ViewError(status).reason, "NO_TRAINING");
  grpc::ClientContext context;
  v1::WatchJobRequest watch;
  watch.set_id("job-1");
  EXPECT_EQ(stub_->WatchJob(&context, watch)->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  grpc::ClientContext packing;
  v1::PackDataRequest pack;
  EXPECT_EQ(stub_->PackData(&packing, pack)->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Connect()->End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace switchyard::server
