// Evaluation sets, the best checkpoint, an early end, deletion: end to end, with the server killed in between.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

class TrainingEvaluationTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(training_.Start());
    const fs::path datasets = training_.root() / "datasets";
    // One of the documents, as all of them would take longer than the steps.
    std::ifstream all(datasets / "text.jsonl");
    std::string first;
    ASSERT_TRUE(std::getline(all, first).good());
    std::ofstream(datasets / "part.jsonl") << first << "\n";
    std::ofstream more(datasets / "more.jsonl");
    for (int i = 0; i < 20; ++i)
      more << "{\"text\": \"other words than those of the first text, number " << i << "\"}\n";
  }

  // Its losses rise soon, as the rate is far too high.
  static v1::JobSpec Worsening() {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_steps(200);
    spec.add_evaluation("part.jsonl");
    spec.add_evaluation("more.jsonl");
    spec.add_evaluation_names("text");
    spec.add_evaluation_names("more");
    spec.set_evaluate_every_steps(3);
    spec.mutable_optimizer()->set_schedule(v1::LR_SHAPE_CONSTANT);
    spec.mutable_optimizer()->set_learning_rate(2);
    spec.mutable_optimizer()->set_warmup_steps(16);
    spec.mutable_checkpoints()->set_every_steps(7);
    spec.mutable_checkpoints()->set_keep_last(1);
    spec.mutable_checkpoints()->set_keep_best(true);
    spec.mutable_early_stop()->set_patience(3);
    spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
    return spec;
  }
  std::string Command(std::vector<std::string> args, int code = 0) {
    args.insert(args.begin(), {Binary("switchyard"), "train"});
    args.push_back(absl::StrCat("--server=", training_.server()->admin_address()));
    const auto process = Process::Start(args);
    EXPECT_EQ(process->Wait(kJobLimit), code) << process->Output();
    return process->Output();
  }
  std::string Log(const v1::Job& job, const char* name) const {
    std::ifstream in(training_.job_folder(job.id()) / "log" / name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  v1::Job Finish(const absl::StatusOr<v1::Job>& begun) {
    EXPECT_TRUE(begun.ok()) << begun.status();
    if (!begun.ok()) return {};
    const v1::Job job = training_.WaitUntilIn(begun->id(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    return job;
  }

  TrainingServer training_;
};

TEST_F(TrainingEvaluationTest, AKilledServersJobEndsAtTheSameStepWithTheSameBest) {
  const v1::Job job = Finish(training_.Submit(Worsening()));
  const std::string why = job.changes(job.changes_size() - 1).reason();
  EXPECT_THAT(why, StartsWith(absl::StrCat("stopped early at step ", job.progress().step(),
                                           ": 3 evaluations in a row were no improvement; the best has loss ")));
  ASSERT_LT(job.progress().step(), 200);
  EXPECT_EQ(job.checkpoint().step(), job.progress().step());
  ASSERT_EQ(job.best_evaluation().sets_size(), 2);
  EXPECT_EQ(job.best_evaluation().sets(0).name(), "text");
  EXPECT_EQ(job.best_evaluation().sets(1).name(), "more");
  EXPECT_EQ(job.best_evaluation().step(), job.progress().step() - 9);
  EXPECT_EQ(job.best_checkpoint().step(), job.best_evaluation().step());
  EXPECT_TRUE(fs::exists(training_.root() / "checkpoints" / job.best_checkpoint().folder() / "MANIFEST.json"));
  const std::string sets = Log(job, "evaluation_sets.csv");
  EXPECT_THAT(sets, StartsWith("step,set,loss,perplexity,tokens\n3,text,"));
  EXPECT_THAT(sets, HasSubstr(absl::StrCat("\n", job.progress().step(), ",more,")));

  const auto again = training_.Submit(Worsening());
  ASSERT_TRUE(again.ok()) << again.status();
  training_.WaitFor(again->id(), [&](const v1::Job& seen) { return seen.evaluation().step() >= 6; });
  training_.Kill();
  ASSERT_TRUE(training_.Start());
  const v1::Job killed = Finish(again);
  EXPECT_EQ(killed.changes(killed.changes_size() - 1).reason(), why);
  EXPECT_GE(killed.attempt(), 1);
  EXPECT_EQ(killed.best_evaluation().DebugString(), job.best_evaluation().DebugString());
  EXPECT_EQ(killed.best_checkpoint().step(), job.best_checkpoint().step());
  EXPECT_EQ(Log(killed, "evaluation_sets.csv"), sets);
  const auto folder = [&](const v1::Job& one) {
    return TrainingServer::Contents(training_.root() / "checkpoints" / one.best_checkpoint().folder());
  };
  EXPECT_TRUE(folder(killed) == folder(job));
}

TEST_F(TrainingEvaluationTest, ADeletedJobLeavesItsForkAndItsSpec) {
  const v1::Job job = Finish(training_.Submit(Worsening()));
  EXPECT_THAT(Command({"get", job.id()}), HasSubstr("              more: loss "));
  const std::string spec = Command({"get", job.id(), "--spec"});
  EXPECT_THAT(spec, HasSubstr("\"evaluationNames\": [\n"));
  std::ofstream(training_.root() / "spec.json") << spec;
  std::string fork =
      Command({"fork", job.id(), "--step=best", "--steps=40", "--early_stop_patience=0", "--learning_rate=1e-4"});
  fork.pop_back();
  const std::string deleted = Command({"delete", job.id()});
  EXPECT_THAT(deleted, StartsWith(absl::StrCat(job.id(), " is deleted; freed ")));
  EXPECT_FALSE(fs::exists(training_.job_folder(job.id())));
  EXPECT_THAT(Command({"delete", job.id()}, 1), HasSubstr("no job has the id"));
  const v1::Job forked = Finish(training_.Get(fork));
  EXPECT_EQ(forked.origin().step(), job.best_checkpoint().step());
  EXPECT_EQ(forked.progress().step(), 40);
  std::string resubmitted = Command({"submit", absl::StrCat("--spec=", (training_.root() / "spec.json").string())});
  resubmitted.pop_back();
  const v1::Job same = Finish(training_.Get(resubmitted));
  EXPECT_EQ(same.spec().DebugString(), job.spec().DebugString());
  EXPECT_EQ(same.best_evaluation().DebugString(), job.best_evaluation().DebugString());
}

}  // namespace
}  // namespace switchyard
