// What a job keeps of its evaluations: the newest, the best, and the checkpoint of the best; an end by a rule.
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

class JobEvaluationsTest : public ManagerTest {
 protected:
  static jobs::JobSpec BestSpec(bool keep_best = true) {
    jobs::JobSpec spec = Spec();
    spec.evaluation = {"e.bin"};
    spec.evaluation_names = {"e"};
    spec.evaluate_every_steps = 5;
    spec.checkpoints.keep_best = keep_best;
    return spec;
  }
  void Evaluated(int64_t step, double loss, int64_t best_step, double best_loss) {
    const jobs::EvaluationReport report = {
        .result = {.step = step, .loss = loss, .tokens = 7, .sets = {{"e", loss, 7}}},
        .best_step = best_step,
        .best_loss = best_loss};
    manager_->runs().OnTraining(1, trainers_.at(1)->epoch(), report);
  }
  void Saved(const std::string& id, int64_t step) {
    manager_->runs().OnTraining(
        1, trainers_.at(1)->epoch(),
        jobs::SavedCheckpoint{.step = step, .folder = absl::StrCat(id, "/step-", step), .bytes = 9});
  }
  int64_t BestSaved(const std::string& id) {
    const JobPtr job = Get(id);
    return job->best_checkpoint.has_value() ? job->best_checkpoint->step : -1;
  }
};

TEST_F(JobEvaluationsTest, TheBestIsKeptInMindWithItsCheckpoint) {
  const std::string id = Running(BestSpec());
  Step(5);
  Evaluated(5, 3, 5, 3);
  EXPECT_EQ(Get(id)->best_evaluation->step, 5);
  EXPECT_EQ(BestSaved(id), -1) << "it is not complete yet";
  Saved(id, 5);
  EXPECT_EQ(BestSaved(id), 5);
  EXPECT_EQ(Get(id)->best_checkpoint->bytes, 9);
  Step(10);
  Saved(id, 10);
  Evaluated(10, 3.5, 5, 3);
  EXPECT_EQ(Get(id)->evaluation->loss, 3.5);
  EXPECT_EQ(Get(id)->best_evaluation->loss, 3);
  EXPECT_EQ(Get(id)->best_evaluation->sets.size(), 1u);
  EXPECT_EQ(BestSaved(id), 5);
  Saved(id, 15);
  Evaluated(15, 2, 15, 2);  // of a checkpoint that was saved before
  EXPECT_EQ(BestSaved(id), 15);
  Evaluated(20, 1, 20, 1);
  EXPECT_EQ(Get(id)->best_evaluation->step, 20);
  EXPECT_EQ(BestSaved(id), 15) << "until the better one is complete";
  AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError("x"));
  Pass(absl::Seconds(10));
  AllStart(20);  // the checkpoint of step 20 was complete, which no report has said
  Saved(id, 21);
  EXPECT_EQ(BestSaved(id), 20);
  AllEnd(jobs::TrainOutcome::kFinished);
  Restart();
  EXPECT_EQ(Get(id)->best_evaluation->step, 20);
  EXPECT_EQ(Get(id)->best_evaluation->sets.size(), 1u);
  EXPECT_EQ(BestSaved(id), 20);
}

TEST_F(JobEvaluationsTest, WithoutTheRuleThereIsNoBestCheckpoint) {
  const std::string id = Running(BestSpec(/*keep_best=*/false));
  Step(5);
  Saved(id, 5);
  Evaluated(5, 3, 5, 3);
  EXPECT_EQ(Get(id)->best_evaluation->step, 5);
  EXPECT_EQ(BestSaved(id), -1);
}

// The server was killed after the workers had saved, and before it had their report.
TEST_F(JobEvaluationsTest, AnAttemptThatGoesOnFromTheBestHasItsCheckpoint) {
  const std::string id = Running(BestSpec());
  Step(5);
  Restart();
  ConnectBoth();
  Pass(absl::Seconds(10));
  AllStart(5);
  Evaluated(5, 3, 5, 3);
  EXPECT_EQ(BestSaved(id), 5);
  EXPECT_EQ(Get(id)->best_checkpoint->folder, id + "/step-00000005");
}

// A damaged checkpoint has cost steps.
TEST_F(JobEvaluationsTest, WhatIsBeyondTheStepToGoOnFromIsVoid) {
  const std::string id = Running(BestSpec());
  Step(10);
  Evaluated(10, 2, 10, 2);
  Saved(id, 10);
  AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError("x"));
  Pass(absl::Seconds(10));
  AllStart(5);
  EXPECT_FALSE(Get(id)->best_evaluation.has_value());
  EXPECT_EQ(BestSaved(id), -1);
  // The workers know of one that this server does not.
  Evaluated(8, 4, 3, 3.5);
  EXPECT_EQ(Get(id)->best_evaluation->step, 3);
  EXPECT_EQ(Get(id)->best_evaluation->loss, 3.5);
  EXPECT_EQ(BestSaved(id), 3) << "workers keep the best one";
}

TEST_F(JobEvaluationsTest, ARequestFromBeforeSetsHadNamesIsTheSame) {
  jobs::JobSpec spec = BestSpec();
  spec.evaluation = {"e.bin", "f.bin"};
  spec.evaluation_names.clear();
  const std::string id = Submit(spec, "once");
  spec.evaluation_names = jobs::DefaultSetNames(spec.evaluation);
  const absl::StatusOr<JobPtr> found = manager_->FindRequest("once", spec);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->id, id);
  spec.evaluation_names = {"e", "e"};
  EXPECT_EQ(manager_->FindRequest("once", spec).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(JobEvaluationsTest, AnEarlyEndIsASuccessThatSaysWhy) {
  const std::string id = Running(BestSpec());
  Step(5);
  const int64_t epoch = trainers_.at(1)->epoch();
  for (const auto& [worker, trainer] : trainers_) {
    manager_->runs().OnTraining(
        worker, epoch, jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}, "stopped early at step 5: it is of no use"});
  }
  EXPECT_EQ(StateOf(id), jobs::JobState::kSucceeded);
  EXPECT_EQ(ReasonOf(id), "stopped early at step 5: it is of no use");
  EXPECT_TRUE(Get(id)->error.ok());
}

}  // namespace
}  // namespace switchyard::server
