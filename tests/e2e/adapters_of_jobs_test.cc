// An adapter that a training job has made, served with --adapters.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

// Workers read its folder again when they come back, so that neither its job may remove it nor a deletion.
TEST(AdapterOfAJobTest, StaysWhileItIsServed) {
  TrainingServer training(/*train_workers=*/1);
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_architecture();
  spec.set_base_checkpoint("demo");
  spec.set_steps(6);
  spec.set_workers(1);
  spec.mutable_lora()->set_rank(4);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  const std::filesystem::path checkpoints = training.root() / "checkpoints";
  const std::filesystem::path folder = checkpoints / job.checkpoint().folder();
  EXPECT_FALSE(std::filesystem::exists(folder / "KEEP"));
  training.Kill();

  const auto server =
      TestServer::Start({.model = (checkpoints / "demo").string(),
                         .flags = {"--threads=1", "--local_train_workers=1", "--train_threads=1",
                                   absl::StrCat("--dataset_root=", (training.root() / "datasets").string()),
                                   absl::StrCat("--checkpoint_root=", checkpoints.string()),
                                   absl::StrCat("--adapters=law=", folder.string())}});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest request = TextRequest("The", 4);
  request.set_model("demo:law");
  const StreamSeen seen = Generate(server->client(), request);
  EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
  EXPECT_TRUE(std::filesystem::exists(folder / "KEEP"));
  v1::DeleteJobRequest deletion;
  deletion.set_id(job.id());
  v1::DeleteJobResponse deleted;
  grpc::ClientContext context;
  const grpc::Status refused =
      v1::TrainingService::NewStub(server->admin_channel())->DeleteJob(&context, deletion, &deleted);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused.error_message(),
            absl::StrCat(job.id(), " is SUCCEEDED, but this server serves ", job.checkpoint().folder()));
}

}  // namespace
}  // namespace switchyard
