// Forks of training jobs end to end: a job that goes on from another one's checkpoint, with its bits.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TrainingForkTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(training_.Start()); }

  // Its rates do not depend on the number of steps.
  static v1::JobSpec Constant(int64_t steps) {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_steps(steps);
    spec.mutable_optimizer()->set_schedule(v1::LR_SHAPE_CONSTANT);
    spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
    return spec;
  }
  static v1::ForkJobRequest Of(const v1::Job& parent, int64_t step = -1) {
    v1::ForkJobRequest request;
    request.set_id(parent.id());
    if (step >= 0) request.set_step(step);
    return request;
  }
  v1::Job Finish(const absl::StatusOr<v1::Job>& begun) {
    EXPECT_TRUE(begun.ok()) << begun.status();
    if (!begun.ok()) return {};
    const v1::Job job = training_.WaitUntilIn(begun->id(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    return job;
  }
  std::map<std::string, std::string> Weights(const v1::Job& job, int64_t step) const {
    return TrainingServer::Contents(training_.job_folder(job.id()) / absl::StrFormat("step-%08d", step));
  }
  // Step, losses, rate, norm and tokens of each row of steps.csv; the rest are times.
  std::vector<std::string> Losses(const v1::Job& job) const {
    std::ifstream in(training_.job_folder(job.id()) / "log/steps.csv");
    std::vector<std::string> rows;
    for (std::string line; std::getline(in, line);) {
      std::vector<std::string> cells = absl::StrSplit(line, ',');
      cells.resize(7);
      rows.push_back(absl::StrJoin(cells, ","));
    }
    return rows;
  }

  TrainingServer training_;
};

// Its layers are cut as its parent's, of which it has chunks.log.
TEST_F(TrainingForkTest, WithoutChangesItHasTheBitsAndRowsOfItsParent) {
  const v1::Job parent = Finish(training_.Submit(TrainingServer::TinySpec()));
  const v1::Job fork = Finish(training_.Fork(Of(parent, 20)));
  EXPECT_EQ(fork.origin().job(), parent.id());
  EXPECT_EQ(fork.progress().loss(), parent.progress().loss());
  EXPECT_EQ(Weights(parent, 24).size(), 4u) << "weights and optimizer of two ranks";
  EXPECT_TRUE(Weights(fork, 24) == Weights(parent, 24));
  EXPECT_EQ(Losses(fork), Losses(parent));
  EXPECT_EQ(Losses(fork).size(), 25u);
}

TEST_F(TrainingForkTest, AFinishedJobGoesOnAsALongerOneWould) {
  const v1::Job longer = Finish(training_.Submit(Constant(30)));
  const v1::Job parent = Finish(training_.Submit(Constant(20)));
  const auto command = Process::Start({Binary("switchyard"), "train", "fork", parent.id(), "--steps=30", "--watch",
                                       absl::StrCat("--server=", training_.server()->admin_address())});
  EXPECT_EQ(command->Wait(kJobLimit), 0) << command->Output();
  const std::string id = command->Output().substr(0, command->Output().find('\n'));
  const v1::Job fork = Finish(training_.Get(id));
  EXPECT_EQ(fork.progress().step(), 30);
  EXPECT_EQ(fork.progress().tokens(), longer.progress().tokens());
  EXPECT_TRUE(Weights(fork, 30) == Weights(longer, 30));
  EXPECT_EQ(Losses(fork), Losses(longer));
}

TEST_F(TrainingForkTest, ALowerRateChangesOnlyWhatFollows) {
  const v1::Job parent = Finish(training_.Submit(Constant(24)));
  v1::ForkJobRequest request = Of(parent, 20);
  request.mutable_changes()->mutable_optimizer()->set_learning_rate(3e-4);
  const v1::Job fork = Finish(training_.Fork(request));
  const std::vector<std::string> was = Losses(parent), is = Losses(fork);
  ASSERT_EQ(is.size(), was.size());
  for (size_t row = 0; row < is.size(); ++row) EXPECT_EQ(is[row] == was[row], row <= 20) << is[row];
  const std::vector<std::string> a = absl::StrSplit(was[21], ','), b = absl::StrSplit(is[21], ',');
  EXPECT_EQ(b[1], a[1]) << "the loss of the parent's weights";
  EXPECT_EQ(b[4], "0.0003");
}

// A parent that runs, keeps one checkpoint and soon removes it.
TEST_F(TrainingForkTest, ARunningParentIsOnlyRead) {
  v1::JobSpec endless = Constant(1'000'000);
  endless.set_workers(1);
  endless.mutable_checkpoints()->set_keep_last(1);
  const auto parent = training_.Submit(endless);
  ASSERT_TRUE(parent.ok()) << parent.status();
  training_.WaitFor(parent->id(), [](const v1::Job& job) { return job.checkpoint().step() >= 4; });
  std::vector<v1::Job> forks;
  for (int i = 0; i < 4; ++i) {
    v1::ForkJobRequest request = Of(*parent);
    request.mutable_changes()->set_steps(999'999);
    const auto fork = training_.Fork(request);
    ASSERT_TRUE(fork.ok()) << fork.status();
    forks.push_back(*fork);
  }
  EXPECT_TRUE(training_.Cancel(parent->id()).ok());
  const v1::Job cancelled = training_.WaitUntilIn(parent->id(), v1::JOB_STATE_CANCELLED);
  fs::remove_all(training_.job_folder(parent->id()));
  for (const v1::Job& fork : forks) {
    const v1::Job job =
        training_.WaitFor(fork.id(), [&](const v1::Job& now) { return now.progress().step() > fork.origin().step(); });
    EXPECT_GT(job.progress().step(), fork.origin().step()) << job.DebugString();
    EXPECT_TRUE(training_.Cancel(fork.id()).ok());
    training_.WaitUntilIn(fork.id(), v1::JOB_STATE_CANCELLED);
  }
  // Of a cancelled job, too.
  v1::ForkJobRequest request = Of(forks[0]);
  const v1::Job last = *training_.Get(forks[0].id());
  request.mutable_changes()->set_steps(last.checkpoint().step() + 4);
  EXPECT_EQ(Finish(training_.Fork(request)).progress().step(), last.checkpoint().step() + 4);
}

TEST_F(TrainingForkTest, KilledItEndsWithTheBitsOfACalmRun) {
  const v1::Job longer = Finish(training_.Submit(Constant(200)));
  const v1::Job parent = Finish(training_.Submit(Constant(20)));
  v1::ForkJobRequest request = Of(parent);
  request.mutable_changes()->set_steps(200);
  // The server is killed as soon as it has acknowledged the fork.
  const auto fork = training_.Fork(request);
  ASSERT_TRUE(fork.ok()) << fork.status();
  training_.Kill();
  ASSERT_TRUE(training_.Start());
  EXPECT_EQ(training_.Get(fork->id())->origin().job(), parent.id());
  // A worker is killed once the fork has saved.
  training_.WaitFor(fork->id(), [](const v1::Job& job) { return job.checkpoint().step() > 20; });
  const std::vector<pid_t> workers = training_.TrainWorkerPids();
  ASSERT_FALSE(workers.empty());
  kill(workers[0], SIGKILL);
  const v1::Job job = Finish(training_.Get(fork->id()));
  EXPECT_GE(job.attempt(), 3) << "its parent's, and two of its own";
  EXPECT_TRUE(Weights(job, 200) == Weights(longer, 200));
  EXPECT_EQ(Losses(job), Losses(longer));
}

// Decay that overshoots makes weights grow without limit.
TEST_F(TrainingForkTest, WhatIsNotFiniteOffersACommandThatForks) {
  const v1::Job parent = Finish(training_.Submit(Constant(8)));
  v1::ForkJobRequest request = Of(parent);
  request.mutable_changes()->set_steps(200);
  request.mutable_changes()->mutable_optimizer()->set_learning_rate(10);
  request.mutable_changes()->mutable_optimizer()->set_weight_decay(9.5);
  request.mutable_changes()->mutable_checkpoints()->set_every_steps(1000);
  const auto fork = training_.Fork(request);
  ASSERT_TRUE(fork.ok()) << fork.status();
  const v1::Job failed = training_.WaitUntilIn(fork->id(), v1::JOB_STATE_FAILED);
  ASSERT_EQ(failed.state(), v1::JOB_STATE_FAILED) << failed.DebugString();
  EXPECT_THAT(failed.error().message(), HasSubstr("loss is not finite"));
  const std::string command = absl::StrCat("switchyard train fork ", failed.id(), " --step=8 --learning_rate=5");
  EXPECT_THAT(failed.error().message(), testing::EndsWith(": " + command));
  std::vector<std::string> words = absl::StrSplit(command, ' ');
  words[0] = Binary("switchyard");
  words.push_back(absl::StrCat("--server=", training_.server()->admin_address()));
  const auto pasted = Process::Start(words);
  ASSERT_EQ(pasted->Wait(kStartLimit), 0) << pasted->Output();
  const auto rescued = training_.Get(pasted->Output().substr(0, pasted->Output().find('\n')));
  ASSERT_TRUE(rescued.ok()) << rescued.status();
  EXPECT_EQ(rescued->origin().job(), failed.id());
  EXPECT_EQ(rescued->origin().step(), 8);
  EXPECT_EQ(rescued->spec().optimizer().learning_rate(), 5);
}

TEST_F(TrainingForkTest, OtherDataWorkersAndCheckpointsAreChanges) {
  const v1::Job parent = Finish(training_.Submit(Constant(8)));
  std::ofstream(training_.root() / "datasets/other.jsonl") << "{\"text\": \"" << std::string(9000, 'a') << "\"}\n";
  v1::ForkJobRequest request = Of(parent);
  request.mutable_changes()->set_steps(16);
  request.mutable_changes()->add_datasets("other.jsonl");
  request.mutable_changes()->set_workers(1);
  request.mutable_changes()->mutable_checkpoints()->set_every_steps(3);
  const v1::Job fork = Finish(training_.Fork(request));
  EXPECT_EQ(fork.changes(0).reason(),
            absl::StrCat("forked from ", parent.id(), " at step 8; its data begin at their first sequence"));
  EXPECT_EQ(fork.progress().step(), 16);
  EXPECT_LT(fork.progress().loss(), parent.progress().loss()) << "a text of one letter is easy";
  EXPECT_TRUE(fs::exists(training_.job_folder(fork.id()) / "step-00000015/MANIFEST.json"));

  // Its text is packed again, as the number of batches is checked then, and is the same.
  v1::ForkJobRequest batches = Of(parent);
  batches.mutable_changes()->set_steps(16);
  batches.mutable_changes()->set_batch_sequences(8);
  const v1::Job wider = Finish(training_.Fork(batches));
  EXPECT_FALSE(wider.origin().other_data());
  // (A document's first token is nobody's target.)
  EXPECT_NEAR(static_cast<double>(wider.progress().tokens() - parent.progress().tokens()), 8 * 8 * 32, 64);
}

}  // namespace
}  // namespace switchyard
