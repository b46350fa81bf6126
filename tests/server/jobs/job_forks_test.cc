// Jobs that are forks of others: how they begin, how requests are repeated, and what a failed parent offers.
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

class JobForksTest : public ManagerTest {
 protected:
  // A parent that has run twice and has a checkpoint of step 20.
  std::string Parent() {
    const std::string id = Running();
    manager_->runs().OnTraining(1, trainers_.at(1)->epoch(),
                                jobs::SavedCheckpoint{.step = 20, .folder = id + "/step-00000020"});
    EXPECT_TRUE(manager_->Pause(id).ok());
    AllEnd(jobs::TrainOutcome::kStopped);
    return id;
  }
  ForkedJob Forked(const std::string& parent, const jobs::JobSpec& spec, const ForkRequest& request = {}) {
    ForkedJob forked = {.id = manager_->DrawId(), .spec = spec};
    forked.origin = ForkOriginOf(*Get(parent), spec, request.step.value_or(20), request.skip_batches);
    forked.checkpoint = {.step = forked.origin.step, .folder = forked.id + "/step-00000020", .bytes = 7};
    forked.files_ready = 2;
    return forked;
  }
  static jobs::JobSpec Longer() {
    jobs::JobSpec spec = Spec();
    spec.steps = spec.optimizer.schedule.total_steps = 200;
    return spec;
  }
};

TEST_F(JobForksTest, ItStartsFromItsParentsCheckpointWithLaterAttempts) {
  const std::string parent = Parent();
  const auto forked = manager_->Fork({}, *Get(parent), Forked(parent, Longer()));
  ASSERT_TRUE(forked.ok()) << forked.status();
  const Job& job = *forked->job;
  EXPECT_FALSE(forked->existed);
  EXPECT_NE(job.id, parent);
  EXPECT_EQ(job.origin, (jobs::ForkOrigin{.job = parent, .step = 20, .attempts = 1}));
  EXPECT_EQ(job.checkpoint->step, 20);
  EXPECT_EQ(ReasonOf(job.id), absl::StrCat("forked from ", parent, " at step 20"));
  EXPECT_EQ(manager_->counts().forks, 1);
  // A server that is killed before the fork starts loses nothing of it.
  Restart();
  ConnectBoth();
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
  const jobs::TrainingAssignment& assignment = trainers_[1]->assignments[0];
  EXPECT_EQ(assignment.job_id, job.id);
  EXPECT_EQ(assignment.attempt, 2) << "checkpoints of the parent's attempt 1 are older";
  EXPECT_EQ(assignment.origin, job.origin);
  EXPECT_EQ(assignment.spec.steps, 200);
  EXPECT_TRUE(host_.packs.empty()) << "its data are the parent's";
  AllStart(20);
  EXPECT_EQ(ReasonOf(job.id), "attempt 2 goes on from step 20 on 2 workers");
  const int64_t before = manager_->counts().tokens;
  Step(21);
  EXPECT_EQ(manager_->counts().tokens - before, 32) << "the parent has trained the others";
  EXPECT_EQ(StateOf(parent), jobs::JobState::kPaused);
}

TEST_F(JobForksTest, ARequestFindsTheForkThatItHasMade) {
  const std::string parent = Parent();
  const ForkRequest request = {.request_id = "r", .skip_batches = 3, .digest = "of it"};
  const auto first = manager_->Fork(request, *Get(parent), Forked(parent, Longer(), request));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->job->origin->skipped_sequences, 12);
  EXPECT_EQ(ReasonOf(first->job->id),
            absl::StrCat("forked from ", parent, " at step 20; 12 sequences are passed over"));
  const auto again = manager_->Fork(request, *Get(parent), Forked(parent, Longer(), request));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->existed);
  EXPECT_EQ(again->job->id, first->job->id);
  const auto exists = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("of another spec, forked from "));
  };
  exists(manager_->FindFork({.request_id = "r", .skip_batches = 3, .digest = "of another"}).status());
  exists(manager_->Submit("r", Longer()).status());
  EXPECT_EQ(*manager_->FindFork({.request_id = "other", .digest = "of it"}), nullptr);
  Submit(Longer(), "s");
  EXPECT_TRUE(absl::IsAlreadyExists(manager_->FindFork({.request_id = "s"}).status())) << "no fork";
  // What becomes of the parent changes nothing.
  ASSERT_TRUE(manager_->ResumeOn(parent, 1).ok());
  Restart();
  const absl::StatusOr<JobPtr> found = manager_->FindFork(request);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->id, first->job->id);
}

TEST_F(JobForksTest, WhatCannotBeIsRefusedBeforeFilesAreLookedAt) {
  const std::string parent = Parent();
  EXPECT_TRUE(manager_->CheckAdmission(Longer()).ok());
  jobs::JobSpec many = Longer();
  many.workers = 4;
  EXPECT_EQ(ReasonIn(manager_->CheckAdmission(many)), "TOO_FEW_WORKERS");
  journal_.error = absl::ResourceExhaustedError("full");
  EXPECT_EQ(ReasonIn(manager_->Submit("", Longer()).status()), "DISK_FULL");
  EXPECT_EQ(ReasonIn(manager_->CheckAdmission(Longer())), "DISK_FULL");
  journal_.error = absl::OkStatus();
  manager_->Tick();
  EXPECT_TRUE(manager_->CheckAdmission(Longer()).ok()) << "the journal works again";
  options_.max_open_jobs = 1;
  Restart();
  EXPECT_EQ(ReasonIn(manager_->CheckAdmission(Longer())), "TOO_MANY_JOBS");
  manager_->Drain();
  EXPECT_TRUE(absl::IsUnavailable(manager_->CheckAdmission(Longer()))) << manager_->CheckAdmission(Longer());
}

TEST_F(JobForksTest, WhatTheJournalRefusesIsNoJob) {
  const std::string parent = Parent();
  journal_.error = absl::ResourceExhaustedError("full");
  const ForkedJob forked = Forked(parent, Longer());
  EXPECT_EQ(ReasonIn(manager_->Fork({}, *Get(parent), forked).status()), "DISK_FULL");
  EXPECT_FALSE(manager_->Get(forked.id).ok());
  jobs::JobSpec many = Longer();
  many.workers = 4;
  journal_.error = absl::OkStatus();
  EXPECT_EQ(ReasonIn(manager_->Fork({}, *Get(parent), Forked(parent, many)).status()), "TOO_FEW_WORKERS");
}

class NotFiniteTest : public JobForksTest {
 protected:
  // The error of a job, here with the id JOB, that goes on from `first`, does steps up to `done`, and is then not
  // finite.
  std::string ErrorAfter(int64_t first, int64_t done, const std::vector<int64_t>& checkpoints) {
    if (trainers_.empty()) ConnectBoth();
    const std::string id = Submit(Spec());
    manager_->Tick();
    AllStart(first);
    for (int64_t step = first + 1; step <= done; ++step) Step(step);
    host_.checkpoints = checkpoints;
    AllEnd(jobs::TrainOutcome::kFailed, absl::DataLossError("loss is not finite: loss nan"));
    EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
    return absl::StrReplaceAll(Get(id)->error.message(), {{id, "JOB"}});
  }
  static std::string Command(int64_t step) {
    return absl::StrCat("loss is not finite: loss nan; to go on from step ", step,
                        " at half the rate: switchyard train fork JOB --step=", step, " --learning_rate=0.00015");
  }
};

TEST_F(NotFiniteTest, OffersAForkThatCanBePasted) {
  EXPECT_EQ(ErrorAfter(0, 45, {40, 20}), Command(40));
  EXPECT_EQ(ErrorAfter(0, 5, {}), "loss is not finite: loss nan") << "there is nothing to go on from";
  EXPECT_EQ(manager_->counts().not_finite, 2);
}

// The loss of step k + 1 is that of the weights after step k, which no rate changes.
TEST_F(NotFiniteTest, OffersNoCheckpointWhoseNextStepFailsAgain) {
  EXPECT_EQ(ErrorAfter(0, 45, {45, 44, 43}), Command(44)) << "every_steps=1";
  EXPECT_EQ(ErrorAfter(40, 40, {40, 20}), Command(20)) << "the first step after a resume";
  EXPECT_EQ(ErrorAfter(0, 100, {100, 60}), Command(60)) << "an evaluation after the last step";
  EXPECT_EQ(ErrorAfter(0, 45, {45}),
            "loss is not finite: loss nan; no checkpoint is from before step 45, so a lower rate would not help");
}

}  // namespace
}  // namespace switchyard::server
