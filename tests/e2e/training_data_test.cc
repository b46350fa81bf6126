// Data of training jobs end to end: conversations in whole sequences, datasets with weights, epochs; over a death of
// the server.  A server that only trains.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Texts of differing lengths, the longest of which fits into a sequence.
void WriteTexts(const fs::path& path, int count, const std::string& word) {
  std::ofstream out(path);
  for (int i = 0; i < count; ++i) {
    std::string text = word;
    for (int j = 0; j < i % 9; ++j) absl::StrAppend(&text, " ", word);
    out << absl::StrCat(R"({"prompt": ")", text, R"(", "completion": ")", word, " ", i, "\"}\n");
  }
}

v1::JobSpec WeightedSpec() {
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_datasets();
  spec.add_datasets("first.jsonl");
  spec.add_datasets("second.jsonl");
  spec.add_dataset_weights(1);
  spec.add_dataset_weights(2.5);
  spec.set_steps(0);
  spec.set_epochs(6.5);
  spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
  return spec;
}

TEST(TrainingDataTest, WeightsAndEpochsOfWholeDocumentsSurviveAKill) {
  TrainingServer training;
  WriteTexts(training.root() / "datasets" / "first.jsonl", 90, "one");
  WriteTexts(training.root() / "datasets" / "second.jsonl", 60, "two");
  ASSERT_TRUE(training.Start());
  const auto calm = training.Submit(WeightedSpec(), "calm");
  ASSERT_TRUE(calm.ok()) << calm.status();
  EXPECT_EQ(calm->spec().packing(), v1::WINDOW_PACKING_BEST_FIT) << "unless the spec says otherwise";
  const v1::Job job = training.WaitUntilIn(calm->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  EXPECT_GT(job.progress().total_steps(), 20);
  EXPECT_EQ(job.progress().step(), job.progress().total_steps());
  EXPECT_EQ(job.spec().steps(), 0);
  EXPECT_GE(job.progress().padding(), 0);
  EXPECT_LT(job.progress().padding(), 0.9);
  for (const char* name : {"dataset-0.bin", "dataset-1.bin"}) {
    EXPECT_TRUE(fs::exists(training.job_folder(calm->id()) / name)) << name;
  }

  const auto killed = training.Submit(WeightedSpec(), "killed");
  ASSERT_TRUE(killed.ok()) << killed.status();
  training.WaitFor(killed->id(), [](const v1::Job& now) { return now.checkpoint().step() >= 4; });
  training.Kill();
  ASSERT_TRUE(training.Start());
  const v1::Job again = training.WaitUntilIn(killed->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(again.state(), v1::JOB_STATE_SUCCEEDED) << again.DebugString();
  EXPECT_GE(again.attempt(), 2) << "it was over before the kill";
  EXPECT_EQ(again.progress().total_steps(), job.progress().total_steps());
  const auto contents = [&](const v1::Job& of) {
    return TrainingServer::Contents(training.root() / "checkpoints" / of.checkpoint().folder());
  };
  EXPECT_FALSE(contents(job).empty());
  EXPECT_TRUE(contents(again) == contents(job));
}

TEST(TrainingDataTest, ADatasetWithoutASequenceIsNamed) {
  TrainingServer training;
  WriteTexts(training.root() / "datasets" / "first.jsonl", 9, "one");
  WriteTexts(training.root() / "datasets" / "second.jsonl", 1, "two");
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = WeightedSpec();
  spec.set_packing(v1::WINDOW_PACKING_CONCATENATE);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.error().message(), HasSubstr("datasets[1]: \"second.jsonl\" has a weight, but its "));
}

TEST(TrainingDataTest, AServerWithoutAModelTrains) {
  TrainingServer training(2, {"--http_port=0"}, /*serving_workers=*/0);
  ASSERT_TRUE(training.Start());
  const auto submitted = training.Submit(TrainingServer::TinySpec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  TestServer& server = *training.server();
  const StreamSeen seen = Generate(server.client(), TextRequest("a", 1));
  EXPECT_EQ(seen.end.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(seen.end.message(), "this server serves no model: it was started without --model, to train jobs");
  EXPECT_EQ(HttpCall(server.http_address(), "GET", "/ready").status, 200);
  EXPECT_EQ(HttpCall(server.http_address(), "GET", "/v1/models").json()["data"], nlohmann::json::array());
  const auto cli = Process::Start({Binary("switchyard"), "status", "--server=" + server.address()});
  ASSERT_NE(cli, nullptr);
  EXPECT_EQ(cli->Wait(absl::Seconds(60)).value_or(-1), 0);
  EXPECT_THAT(cli->Output(),
              testing::AllOf(HasSubstr(": ready\n"), HasSubstr("model      none: this server serves no")));
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(absl::Seconds(60)).value_or(-1), 0) << server.process().Output();
}

}  // namespace
}  // namespace switchyard
