// Bad calls about jobs and data: each with its code, reason and message.
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/support/raw_message.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

constexpr auto kBad = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kNone = grpc::StatusCode::NOT_FOUND;
constexpr auto kCannot = grpc::StatusCode::FAILED_PRECONDITION;

using BadCallsTest = TrainingTest;

// A repeated field is a client's mistake, since it is unclear which value it means.
TEST_F(BadCallsTest, AFieldTwice) {
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_steps(20);
  v1::JobSpec other;
  other.set_steps(30);
  std::string spec = request.spec().SerializeAsString() + other.SerializeAsString();
  v1::SubmitJobRequest bytes;
  bytes.GetReflection()->MutableUnknownFields(&bytes)->AddLengthDelimited(v1::SubmitJobRequest::kSpecFieldNumber, spec);
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  const grpc::ByteBuffer sent = rpc::SerializeRaw(bytes);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, "/switchyard.v1.TrainingService/SubmitJob", grpc::StubOptions(), &sent, &response,
                 [&](grpc::Status result) {
                   status = result;
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_EQ(status.error_code(), kBad);
  EXPECT_EQ(rpc::ViewError(status).reason, "BAD_REQUEST_BYTES");
  EXPECT_THAT(status.error_message(), HasSubstr("request is not a valid SubmitJobRequest: second steps at byte "));
}

// Bad calls about jobs: each with its code, reason and message.
TEST_F(BadCallsTest, BadQuestions) {
  const auto expect = [](const grpc::Status& status, const std::string& message) {
    EXPECT_EQ(status.error_code(), kBad) << message;
    EXPECT_EQ(rpc::ViewError(status).reason, "BAD_FIELD") << message;
    EXPECT_EQ(status.error_message(), message);
  };
  const auto list = [&](const std::function<void(v1::ListJobsRequest*)>& spoil) {
    v1::ListJobsRequest request;
    spoil(&request);
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    return stub_->ListJobs(&context, request, &response);
  };
  expect(list([](auto* r) { r->set_page_size(-1); }), "page_size: -1 is outside [0, 1000]");
  expect(list([](auto* r) { r->set_page_size(1001); }), "page_size: 1001 is outside [0, 1000]");
  expect(list([](auto* r) { r->set_page_token("0"); }), "page_token: \"0\" is no answer's next_page_token");
  expect(list([](auto* r) { r->set_page_token("9999999999999999999"); }),
         "page_token: \"9999999999999999999\" is no answer's next_page_token");
  const grpc::Status state = list([](auto* r) { r->add_states(static_cast<v1::JobState>(10)); });
  EXPECT_EQ(state.error_code(), kBad);
  EXPECT_THAT(state.error_message(), HasSubstr("states: "));
  const auto watch = [&](const std::string& id, int interval_ms) {
    v1::WatchJobRequest request;
    request.set_id(id);
    request.set_min_interval_ms(interval_ms);
    grpc::ClientContext context;
    return stub_->WatchJob(&context, request)->Finish();
  };
  expect(watch("job-1", -1), "min_interval_ms: -1 is outside [0, 3600000]");
  expect(watch("job-1", 3'600'001), "min_interval_ms: 3600001 is outside [0, 3600000]");
  expect(watch("", 0), "id: is empty");
  expect(watch(std::string(65, 'x'), 0), "id: 65 bytes, at most 64");
  EXPECT_EQ(rpc::ViewError(watch("job-1", 0)).reason, "JOB_NOT_FOUND");
}

TEST_F(BadCallsTest, BadPacks) {
  ASSERT_EQ(symlink("..", (base_.path() + "/data/away").c_str()), 0);
  std::filesystem::create_directories(base_.path() + "/models/mute");
  struct BadPack {
    std::function<void(v1::PackDataRequest*)> spoil;
    grpc::StatusCode code;
    std::string reason, message;
  };
  constexpr auto kThere = grpc::StatusCode::ALREADY_EXISTS;
  const auto input = [](const char* path) { return [path](v1::PackDataRequest* r) { r->set_inputs(0, path); }; };
  const auto output = [](const char* path) { return [path](v1::PackDataRequest* r) { r->set_output(path); }; };
  const auto tokenizer = [](const char* path) { return [path](v1::PackDataRequest* r) { r->set_tokenizer(path); }; };
  for (const BadPack& bad : std::vector<BadPack>{
           {[](auto* r) { r->clear_inputs(); }, kBad, "BAD_FIELD", "inputs: none"},
           {[](auto* r) {
              for (int i = 0; i < 1024; ++i) r->add_inputs("x.jsonl");
            },
            kBad, "BAD_FIELD", "inputs: 1025 files, at most 1024"},
           {input("a.bin"), kBad, "BAD_FIELD", "inputs[0]: \"a.bin\" does not end in .jsonl"},
           {input("/etc/x.jsonl"), kBad, "BAD_FIELD",
            "inputs[0]: \"/etc/x.jsonl\": path must be under the dataset root"},
           {input("../x.jsonl"), kBad, "BAD_FIELD", "inputs[0]: \"../x.jsonl\": path must be under the dataset root"},
           {input("none.jsonl"), kNone, "BAD_FILE", "\"none.jsonl\": not in the dataset root"},
           {output("made.txt"), kBad, "BAD_FIELD", "output: \"made.txt\" does not end in .bin"},
           {output(""), kBad, "BAD_FIELD", "output: \"\": path must be under the dataset root: it is empty"},
           {output("~/made.bin"), kBad, "BAD_FIELD", "output: \"~/made.bin\": path must be under the dataset root"},
           {output("away/made.bin"), kBad, "BAD_FILE", "path must be under the dataset root"},
           {output("a.bin"), kThere, "BAD_FILE", "a.bin"},
           {tokenizer("../demo"), kBad, "BAD_FIELD", "tokenizer: \"../demo\": path must be under the checkpoint root"},
           {tokenizer("none"), kNone, "BAD_FILE", "\"none\": not in the checkpoint root"},
           {tokenizer("mute"), kCannot, "BAD_FILE", "mute: has no tokenizer.json"},
       }) {
    v1::PackDataRequest request;
    request.add_inputs("sub/text.jsonl");
    request.set_output("made.bin");
    bad.spoil(&request);
    grpc::ClientContext context;
    const auto stream = stub_->PackData(&context, request);
    v1::PackDataResponse response;
    while (stream->Read(&response)) continue;
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), bad.code) << bad.message << ": " << status.error_message();
    EXPECT_EQ(rpc::ViewError(status).reason, bad.reason) << bad.message;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
    EXPECT_FALSE(std::filesystem::exists(base_.path() + "/data/made.bin")) << bad.message;
  }
}

TEST_F(BadCallsTest, BadRequests) {
  v1::SubmitJobResponse response;
  v1::SubmitJobRequest request = Request();
  request.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(Submit(request, &response).error_message(), HasSubstr("request_id: 129 bytes, at most 128"));
  request.set_request_id("a\nb");
  EXPECT_THAT(Submit(request, &response).error_message(), HasSubstr("do not print"));
  EXPECT_THAT(Submit(v1::SubmitJobRequest(), &response).error_message(), HasSubstr("spec: is missing"));
  grpc::ClientContext context;
  v1::GetJobResponse job;
  v1::GetJobRequest get;
  EXPECT_EQ(stub_->GetJob(&context, get, &job).error_code(), kBad);
  get.set_id("job-none");
  grpc::ClientContext other;
  const grpc::Status none = stub_->GetJob(&other, get, &job);
  EXPECT_EQ(none.error_code(), kNone);
  EXPECT_EQ(rpc::ViewError(none).reason, "JOB_NOT_FOUND");
  request = Request();
  request.set_request_id("r");
  ASSERT_TRUE(Submit(request, &response).ok());
  request.mutable_spec()->set_seed(9);
  const grpc::Status twice = Submit(request, &response);
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(rpc::ViewError(twice).reason, "JOB_EXISTS");
  EXPECT_EQ(twice.error_message(), "request_id: \"r\" has made " + response.job().id() + " of another spec");
  // A repeated request is found even if its files are gone.
  std::filesystem::remove(base_.path() + "/data/a.bin");
  request.mutable_spec()->set_seed(0);
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_TRUE(response.existed());
}

// A new number of workers is checked like a spec's: by the manager, the spec's checks and the model's.
TEST_F(BadCallsTest, BadNumbersOfWorkers) {
  const std::string single = base_.path() + "/models/single";
  std::filesystem::create_directories(single);
  std::string config = kTinyConfig;
  config.replace(config.find("_experts\": 4"), 12, "_experts\": 1");
  std::ofstream(single + "/config.json") << config.replace(config.find("_per_tok\": 2"), 12, "_per_tok\": 1");
  const auto paused = [&](const char* model, int workers) {
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->set_architecture(model);
    request.mutable_spec()->set_workers(workers);
    const std::string id = SubmitOk(request);
    grpc::ClientContext context;
    v1::PauseJobRequest pause;
    v1::PauseJobResponse response;
    pause.set_id(id);
    EXPECT_TRUE(stub_->PauseJob(&context, pause, &response).ok());
    return id;
  };
  v1::ResumeJobResponse response;
  const auto resume = [&](const std::string& id, int workers) {
    grpc::ClientContext context;
    v1::ResumeJobRequest request;
    request.set_id(id);
    request.set_workers(workers);
    return stub_->ResumeJob(&context, request, &response);
  };
  const auto expect = [&](const grpc::Status& status, grpc::StatusCode code, const char* reason,
                          const std::string& message) {
    EXPECT_EQ(status.error_code(), code) << message;
    EXPECT_EQ(rpc::ViewError(status).reason, reason) << message;
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  };
  const std::string id = paused("demo", 2), one = paused("single", 1);
  expect(resume(id, 0), kBad, "BAD_FIELD", "workers: 0 is outside [1, 1024]");
  expect(resume(id, -1), kBad, "BAD_FIELD", "workers: -1 is outside [1, 1024]");
  expect(resume(id, 1025), kBad, "BAD_FIELD", "workers: 1025 is outside [1, 1024]");
  const grpc::Status shares = resume(id, 3);
  expect(shares, kBad, "BAD_FIELD", "batch_sequences: 4 cannot be dealt out to 3 workers in equal parts");
  EXPECT_EQ(rpc::ViewError(shares).details.metadata().at("field"), "workers");
  EXPECT_EQ(rpc::ViewError(shares).details.metadata().at("actual"), "3");
  const grpc::Status few = resume(id, 4);
  expect(few, kCannot, "TOO_FEW_WORKERS", "workers: needs 4 ranks, 0 alive, 2 configured");
  EXPECT_EQ(rpc::ViewError(few).details.metadata().at("field"), "workers");
  EXPECT_EQ(rpc::ViewError(few).details.metadata().at("limit"), "2");
  expect(resume(one, 2), kBad, "BAD_FIELD",
         "workers: 2 workers, but a layer has 1 expert, and each worker needs at least one of them; at most 1 worker");
  expect(resume("job-none", 1), kNone, "JOB_NOT_FOUND", "no job has the id \"job-none\"");
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_PAUSED);

  ASSERT_TRUE(resume(id, 1).ok());
  EXPECT_EQ(response.job().spec().workers(), 1);
  EXPECT_EQ(response.job().submitted_workers(), 2);
  EXPECT_EQ(response.job().state(), v1::JOB_STATE_PENDING);
  EXPECT_TRUE(resume(id, 1).ok()) << "it is so";
  expect(resume(id, 2), kCannot, "JOB_STATE",
         "job is PENDING: cannot resume on another number of workers: 2 instead of 1");
  // Resuming with the same number does not check the model.
  std::filesystem::remove_all(single);
  EXPECT_TRUE(resume(one, 1).ok());
}

}  // namespace
}  // namespace switchyard::server
