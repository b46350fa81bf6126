// Whose jobs a key may see and change.
#include "gmock/gmock.h"
#include "tests/server/jobs/training_fixture.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard::server {
namespace {

class JobOwnersTest : public TrainingTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->api_keys_file =
        WriteKeys(base_, KeyLine("tina", "trainer") + KeyLine("theo", "trainer") + KeyLine("root", "admin"));
  }
  v1::SubmitJobResponse SubmitAs(const std::string& name, const std::string& request_id = "") {
    v1::SubmitJobRequest request = Request();
    request.set_request_id(request_id);
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(ContextOf(name).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::vector<std::string> ListAs(const std::string& name) {
    v1::ListJobsResponse response;
    EXPECT_TRUE(stub_->ListJobs(ContextOf(name).get(), v1::ListJobsRequest(), &response).ok());
    std::vector<std::string> ids;
    for (const v1::Job& job : response.jobs()) ids.push_back(job.id());
    return ids;
  }
  // Calls a method about the job.
  template <class Request, class Response>
  grpc::Status About(grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const std::string& name, const std::string& id, Request request = {}) {
    request.set_id(id);
    Response response;
    return (stub_.get()->*method)(ContextOf(name).get(), request, &response);
  }
  // Tries everything with the job; returns the errors.
  std::vector<grpc::Status> TryAll(const std::string& name, const std::string& id) {
    using Stub = v1::TrainingService::Stub;
    v1::ResumeJobRequest on_two;  // as many as before
    on_two.set_workers(2);
    std::vector<grpc::Status> ends = {About(&Stub::GetJob, name, id), About(&Stub::PauseJob, name, id),
                                      About(&Stub::ResumeJob, name, id), About(&Stub::PauseJob, name, id),
                                      About(&Stub::ResumeJob, name, id, on_two)};
    v1::WatchJobRequest watch;
    watch.set_id(id);
    const auto context = ContextOf(name);
    const auto stream = stub_->WatchJob(context.get(), watch);
    v1::WatchJobResponse job;
    const bool seen = stream->Read(&job);
    if (seen) context->TryCancel();
    const grpc::Status end = stream->Finish();
    ends.push_back(seen ? grpc::Status::OK : end);
    ends.push_back(About(&Stub::CancelJob, name, id));
    return ends;
  }
};

TEST_F(JobOwnersTest, OthersJobsAreNotThere) {
  const std::string id = SubmitAs("tina").job().id();
  const std::vector<grpc::Status> none = TryAll("theo", "job-none"), others = TryAll("theo", id);
  ASSERT_EQ(none.size(), others.size());
  for (size_t i = 0; i < none.size(); ++i) {
    EXPECT_EQ(others[i].error_code(), grpc::StatusCode::NOT_FOUND) << i;
    EXPECT_EQ(rpc::ViewError(others[i]).reason, "JOB_NOT_FOUND") << i;
    // The same words: nobody learns whether the job exists.
    EXPECT_EQ(others[i].error_message(), absl::StrCat("no job has the id \"", id, "\"")) << i;
    EXPECT_EQ(none[i].error_message(), "no job has the id \"job-none\"") << i;
  }
  EXPECT_THAT(ListAs("theo"), testing::IsEmpty());
}

TEST_F(JobOwnersTest, OwnersAndAdminsMayDoEverything) {
  for (const char* name : {"tina", "root"}) {
    const v1::SubmitJobResponse submitted = SubmitAs("tina");
    EXPECT_EQ(submitted.job().owner(), "tina");
    for (const grpc::Status& end : TryAll(name, submitted.job().id())) EXPECT_TRUE(end.ok()) << end.error_message();
  }
  const std::string own = SubmitAs("root").job().id();
  EXPECT_EQ(ListAs("tina").size(), 2u);
  EXPECT_EQ(ListAs("root").size(), 3u);
  EXPECT_THAT(ListAs("tina"), testing::Not(testing::Contains(own)));
}

TEST_F(JobOwnersTest, RequestIdsAreEachOwnersAndOwnersOutliveTheServer) {
  const std::string first = SubmitAs("tina", "once").job().id();
  const std::string second = SubmitAs("theo", "once").job().id();
  EXPECT_NE(first, second);
  StopServer();
  StartServer();
  EXPECT_EQ(SubmitAs("tina", "once").job().id(), first);
  const v1::SubmitJobResponse again = SubmitAs("theo", "once");
  EXPECT_EQ(again.job().id(), second);
  EXPECT_TRUE(again.existed());
  EXPECT_THAT(ListAs("theo"), testing::ElementsAre(second));
  EXPECT_THAT(ListAs("root"), testing::ElementsAre(second, first));
}

}  // namespace
}  // namespace switchyard::server
