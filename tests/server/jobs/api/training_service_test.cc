// Training jobs over real gRPC, with workers that speak the link: their states, watchers and lists, and what becomes of
// them when the server stops.  (What they train on: job_data_test.cc.)
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "proto/support/errors.h"
#include "server/jobs/journal/job_store.h"
#include "tests/becomes.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

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
