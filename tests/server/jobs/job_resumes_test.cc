// Jobs that are resumed on another number of workers.
#include "proto/support/errors.h"
#include "server/jobs/job_manager.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

class JobResumesTest : public ManagerTest {
 protected:
  // Returns a job that ran on two workers and is paused.
  std::string Paused(const jobs::JobSpec& spec = Spec()) {
    const std::string id = Begun(spec, "request");
    AllStart();
    EXPECT_TRUE(manager_->Pause(id).ok());
    AllEnd(jobs::TrainOutcome::kStopped);
    EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
    return id;
  }
};

TEST_F(JobResumesTest, OnOneOfTwoWorkers) {
  const std::string id = Paused();
  const auto resumed = manager_->ResumeOn(id, 1);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ((*resumed)->spec.workers, 1);
  EXPECT_EQ((*resumed)->submitted_workers, 2);
  EXPECT_EQ(ReasonOf(id), "resume was asked for on 1 workers instead of 2");
  EXPECT_EQ(journal_.kept.begin()->second.spec.workers, 1) << "written before it was acknowledged";
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size() + trainers_[2]->assignments.size(), 3u) << "two of before, one now";
  const jobs::TrainingAssignment& assignment = trainers_[trainers_[1]->assignments.size() == 2 ? 1 : 2]->assignments[1];
  EXPECT_EQ(assignment.attempt, 2);
  EXPECT_EQ(assignment.world, 1);
  EXPECT_EQ(assignment.spec.workers, 1);

  Restart();
  EXPECT_EQ(Get(id)->spec.workers, 1);
  Connect(1);
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u) << "one is enough for it";
  EXPECT_EQ(trainers_[1]->assignments[0].attempt, 3);
  EXPECT_EQ(trainers_[1]->assignments[0].world, 1);
}

TEST_F(JobResumesTest, ARequestFindsWhatItHasMade) {
  const std::string id = Paused();
  ASSERT_TRUE(manager_->ResumeOn(id, 1).ok());
  Restart();
  const auto again = manager_->Submit("request", Spec(2));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->job->id, id);
  EXPECT_TRUE(again->existed);
  EXPECT_EQ(manager_->Submit("request", Spec(1)).status().code(), absl::StatusCode::kAlreadyExists)
      << "that is not what was asked for";
  ASSERT_TRUE(manager_->Pause(id).ok());
  ASSERT_TRUE(manager_->ResumeOn(id, 2).ok());
  EXPECT_TRUE(manager_->Submit("request", Spec(2))->existed);
}

TEST_F(JobResumesTest, TheSameNumberIsAPlainResume) {
  const std::string id = Paused();
  ASSERT_TRUE(manager_->ResumeOn(id, 2).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(ReasonOf(id), "resume was asked for");
  EXPECT_EQ(Get(id)->submitted_workers, 0);
  ASSERT_TRUE(manager_->ResumeOn(id, 2).ok()) << "it is so";
}

TEST_F(JobResumesTest, OnlyAPausedJobChanges) {
  const std::string id = Submit(Spec());
  const auto refused = [&](const std::string& state) {
    const absl::Status status = manager_->ResumeOn(id, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason, "JOB_STATE");
    EXPECT_EQ(status.message(),
              absl::StrCat("job is ", state, ": cannot resume on another number of workers: 1 instead of 2"));
    EXPECT_EQ(Get(id)->spec.workers, 2);
  };
  refused("PENDING");
  ConnectBoth();
  manager_->Tick();
  refused("PREPARING");
  AllStart();
  refused("RUNNING");
  ASSERT_TRUE(manager_->Pause(id).ok());
  refused("PAUSING");
  AllEnd(jobs::TrainOutcome::kFinished);
  refused("SUCCEEDED");
}

TEST_F(JobResumesTest, NothingChangesThatTheJournalDoesNotKnow) {
  const std::string id = Paused();
  journal_.error = absl::UnavailableError("no disk");
  EXPECT_FALSE(manager_->ResumeOn(id, 1).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  EXPECT_EQ(Get(id)->spec.workers, 2);
  EXPECT_EQ(Get(id)->submitted_workers, 0);
}

// Workers would refuse the checkpoint as another job's.
TEST_F(JobResumesTest, RowsOfACapacityStay) {
  jobs::JobSpec spec = Spec();
  spec.capacity_factor = 1.5;
  const std::string even = Paused(spec);
  EXPECT_TRUE(manager_->ResumeOn(even, 1).ok()) << "of the whole batch, as before";
  ASSERT_TRUE(manager_->Cancel(even).ok());
  spec.micro_batch_sequences = 1;
  const std::string id = Submit(spec);
  ASSERT_TRUE(manager_->Pause(id).ok());
  const absl::Status status = manager_->ResumeOn(id, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "workers: 1 instead of 2 changes the rows that capacity_factor 1.5 is of: micro_batch_sequences is 1, must "
            "be 0 for that");
  EXPECT_TRUE(manager_->ResumeOn(id, 2).ok());
}

}  // namespace
}  // namespace switchyard::server
