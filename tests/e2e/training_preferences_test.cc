// Direct preference optimization end to end: pairs of answers as JSONL, on two workers, and a server that is killed.
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

std::string ReadText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TrainingPreferencesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(training_.Start());
    for (const auto& [name, first, count] : {std::tuple("pairs.jsonl", 0, 60), std::tuple("held.jsonl", 60, 12)}) {
      std::ofstream lines(training_.root() / "datasets" / name);
      for (int i = first; i < first + count; ++i) {
        lines << R"({"prompt": "What is )" << i << R"(?", "chosen": " A number.", "rejected": " I )" << i * 7 % 50
              << R"( do not know"})"
              << "\n";
      }
    }
    v1::JobSpec first = TrainingServer::TinySpec();
    first.set_steps(4);
    const auto submitted = training_.Submit(first);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const v1::Job job = training_.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    base_ = job.checkpoint().folder();
  }

  v1::JobSpec Spec() const {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.clear_architecture();
    spec.set_base_checkpoint(base_);
    spec.clear_datasets();
    spec.add_datasets("pairs.jsonl");
    spec.add_evaluation("held.jsonl");
    spec.set_sequence_length(64);
    spec.mutable_optimizer()->set_learning_rate(2e-3);
    spec.mutable_dpo()->set_beta(0.1);
    return spec;
  }
  void ExpectRefused(const v1::JobSpec& spec, const std::string& message) {
    const absl::Status status = training_.Submit(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
  }

  TrainingServer training_;
  std::string base_;
};

TEST_F(TrainingPreferencesTest, LearnsWhatIsPreferred) {
  const auto submitted = training_.Submit(Spec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training_.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  ASSERT_TRUE(job.progress().has_preferences()) << job.DebugString();
  EXPECT_GT(job.progress().preferences().pairs(), 0);
  EXPECT_GT(job.progress().preferences().accuracy(), 0.9);
  EXPECT_GT(job.progress().preferences().margin(), 0.1);
  EXPECT_LT(job.progress().loss(), 0.65);
  EXPECT_EQ(job.evaluation().preferences().pairs(), 12);
  EXPECT_GT(job.evaluation().preferences().accuracy(), 0.9);
  ASSERT_EQ(job.evaluation().sets_size(), 1);
  EXPECT_EQ(job.evaluation().sets(0).preferences().pairs(), 12);
  const std::string steps = ReadText(training_.job_folder(job.id()) / "log" / "steps.csv");
  EXPECT_THAT(steps, HasSubstr(",dead_experts,margin,accuracy\n1,0.69314"));
}

TEST_F(TrainingPreferencesTest, MetricsHaveTheFigures) {
  v1::JobSpec spec = Spec();
  spec.set_steps(1'000'000);
  spec.mutable_checkpoints()->set_every_steps(1'000'000);
  const auto submitted = training_.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  std::string page;
  EXPECT_TRUE(WaitUntil(
      [&] {
        page = Scrape(training_.server()->metrics_address());
        return HasLine(page, "switchyard_train_preference_margin{") &&
               HasLine(page, "switchyard_train_preference_accuracy{");
      },
      kJobLimit));
  const std::string labels = absl::StrCat("{job_id=\"", submitted->id(), "\",slot=\"0\"}");
  EXPECT_THAT(page, HasSubstr("switchyard_train_preference_margin" + labels));
  EXPECT_THAT(page, HasSubstr("switchyard_train_preference_accuracy" + labels));
}

// Killed once while it trains: the next server's attempt reads what the reference says, and ends with the same bits.
TEST_F(TrainingPreferencesTest, AKilledServerChangesNoBit) {
  v1::JobSpec spec = Spec();
  spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
  const auto whole = training_.Submit(spec);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const v1::Job done = training_.WaitUntilIn(whole->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(done.state(), v1::JOB_STATE_SUCCEEDED) << done.DebugString();
  const auto cut = training_.Submit(spec);
  ASSERT_TRUE(cut.ok()) << cut.status();
  training_.WaitFor(cut->id(), [](const v1::Job& job) { return job.checkpoint().step() >= 8; });
  training_.Kill();
  ASSERT_TRUE(training_.Start());
  const v1::Job again = training_.WaitUntilIn(cut->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(again.state(), v1::JOB_STATE_SUCCEEDED) << again.DebugString();
  EXPECT_EQ(TrainingServer::Contents(training_.root() / "checkpoints" / again.checkpoint().folder()),
            TrainingServer::Contents(training_.root() / "checkpoints" / done.checkpoint().folder()));
}

TEST_F(TrainingPreferencesTest, WhatDoesNotFitIsRefusedWhenAJobIsSubmitted) {
  v1::JobSpec spec = Spec();
  spec.clear_dpo();
  ExpectRefused(spec, "spec.datasets[0]: pairs.jsonl:1 (byte 0): chosen, rejected: a pair of answers is for a job");
  spec = Spec();
  spec.set_datasets(0, "text.jsonl");
  ExpectRefused(spec, "spec.datasets[0]: text.jsonl:1 (byte 0): has no chosen and rejected: a job with dpo");
}

}  // namespace
}  // namespace switchyard
