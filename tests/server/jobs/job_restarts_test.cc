// Jobs over restarts of the server, and a journal that cannot be written.
#include "proto/support/errors.h"
#include "server/jobs/job_manager.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(ManagerTest, AKilledServerForgetsNothingAndStartsNothingTwice) {
  const std::string id = Submit(Spec(), "request");
  Restart();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  int64_t attempts = 0;
  const auto begin = [&] {
    ConnectBoth();
    manager_->Tick();
    ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
    EXPECT_EQ(trainers_[1]->assignments[0].attempt, ++attempts);
  };
  begin();
  Restart();  // PREPARING
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(ReasonOf(id), "its server has ended and was started again");
  begin();
  AllStart();
  Step(4);
  Pass(absl::Seconds(2));
  Restart();  // RUNNING
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(Get(id)->progress->step, 4);
  EXPECT_EQ(Get(id)->losses, 0) << "it is not the job's fault";
  begin();
  AllStart();
  ASSERT_TRUE(manager_->Pause(id).ok());
  Restart();  // PAUSING
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  Restart();  // PAUSED
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  ASSERT_TRUE(manager_->Resume(id).ok());
  begin();
  AllStart();
  ASSERT_TRUE(manager_->Cancel(id).ok());
  Restart();  // CANCELLING
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  Restart();
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_EQ(manager_->List({}).jobs.size(), 1u);
}

TEST_F(ManagerTest, AQueueSurvivesItsServer) {
  const std::string one = Submit(Spec()), two = Submit(Spec()), three = Submit(Spec());
  ASSERT_TRUE(manager_->Pause(one).ok());
  ASSERT_TRUE(manager_->Resume(one).ok());  // goes to the end
  Restart();
  ConnectBoth();
  manager_->Tick();
  EXPECT_EQ(StateOf(two), jobs::JobState::kPreparing);
  for (const std::string& next : {three, one}) {
    AllStart();
    AllEnd(jobs::TrainOutcome::kFinished);
    manager_->Tick();
    EXPECT_EQ(StateOf(next), jobs::JobState::kPreparing);
  }
}

TEST_F(ManagerTest, NothingStartsThatTheJournalDoesNotKnow) {
  ConnectBoth();
  const std::string id = Submit(Spec());
  journal_.error = absl::ResourceExhaustedError("disk full");
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  journal_.error = {};
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  AllStart();
  Step(3);

  // Workers' reports take effect at once, and are journaled as soon as possible.
  journal_.error = absl::ResourceExhaustedError("disk full");
  EXPECT_FALSE(manager_->Pause(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError("gone"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  Pass(absl::Minutes(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(trainers_[1]->assignments.size(), 1u);
  journal_.error = {};
  Pass(absl::Minutes(1));
  EXPECT_EQ(trainers_[1]->assignments.size(), 2u);
  EXPECT_EQ(journal_.kept.begin()->second.attempt, 2);
}

// The disk may still be full when the next server starts: it starts, keeps jobs in memory, and journals them when it
// can.
TEST_F(ManagerTest, AServerStartsWithAJournalThatCannotBeWritten) {
  const std::string id = Begun();
  AllStart();
  journal_.error = absl::ResourceExhaustedError("jobs.sqlite: database or disk is full");
  Restart();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  ConnectBoth();
  Pass(absl::Minutes(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_THAT(Get(id)->note, HasSubstr("waits for the journal: jobs.sqlite: database or disk is full"));
  EXPECT_FALSE(manager_->counts().journal_ok);
  const absl::Status pause = manager_->Pause(id).status();
  EXPECT_EQ(pause.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(switchyard::rpc::ReasonOf(pause), v1::DISK_FULL);
  EXPECT_THAT(std::string(pause.message()), HasSubstr("make room beneath the checkpoint root"));
  journal_.error = {};
  Pass(absl::Minutes(1));
  EXPECT_TRUE(manager_->counts().journal_ok);
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
}

TEST_F(ManagerTest, AJobThatTheJournalKeepsFromBeginningSaysSo) {
  ConnectBoth();
  const std::string id = Submit(Spec());
  journal_.error = absl::ResourceExhaustedError("jobs.sqlite: database or disk is full");
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(Get(id)->note, "waits for the journal: jobs.sqlite: database or disk is full");
  EXPECT_FALSE(manager_->counts().journal_ok);
  journal_.error = {};
  manager_->Tick();
  EXPECT_TRUE(manager_->counts().journal_ok);
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
}

// The request was refused, and no job is unsaved; the gauge still shows when there is room again.
TEST_F(ManagerTest, TheJournalIsTriedAgainAlsoWhereNothingWaitsForIt) {
  const std::string id = Begun();
  AllStart();
  journal_.error = absl::ResourceExhaustedError("jobs.sqlite: database or disk is full");
  EXPECT_FALSE(manager_->Pause(id).ok());
  manager_->Tick();
  EXPECT_FALSE(manager_->counts().journal_ok);
  journal_.error = {};
  manager_->Tick();
  EXPECT_TRUE(manager_->counts().journal_ok);
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
}

TEST_F(ManagerTest, AnAttemptsNumberIsWrittenBeforeWorkersHearIt) {
  const std::string id = Begun(TextSpec());
  journal_.error = absl::UnavailableError("no disk");
  manager_->runs().OnPrepared(id, PackedData{.tokens = 100, .trained_tokens = 100});
  EXPECT_TRUE(trainers_[1]->assignments.empty());
  EXPECT_THAT(Get(id)->note, HasSubstr("waits for the journal"));
  journal_.error = {};
  Pass(absl::Seconds(1));
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
  EXPECT_EQ(trainers_[1]->assignments[0].attempt, 1);
}

TEST_F(ManagerTest, ProgressIsWrittenAtMostSoOften) {
  const std::string id = Running();
  const int before = journal_.saves;
  for (int step = 1; step <= 50; ++step) {
    Step(step);
    Pass(absl::Milliseconds(100));
  }
  EXPECT_LE(journal_.saves - before, 6);
  EXPECT_GE(journal_.saves - before, 4);
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 50});
  EXPECT_EQ(journal_.kept.begin()->second.checkpoint->step, 50) << "a checkpoint at once";
}

TEST_F(ManagerTest, AServerThatStopsSavesFirst) {
  const std::string id = Running();
  manager_->Drain();
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("save ", trainers_[1]->epoch()));
  EXPECT_FALSE(manager_->idle());
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_TRUE(manager_->idle());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(manager_->Submit("", Spec()).status().code(), absl::StatusCode::kUnavailable);
  Restart();
  EXPECT_EQ(Get(id)->losses, 0);
}

// Workers that end while the server stops are not counted as losses.
TEST_F(ManagerTest, WorkersThatEndWithTheServerAreNoLosses) {
  const std::string id = Running();
  manager_->Drain();
  manager_->runs().OnTrainerLost(1, "its link ended");
  manager_->runs().OnTrainerLost(2, "its link ended");
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(Get(id)->losses, 0);
  EXPECT_EQ(manager_->counts().losses, 0);
}

// A page of jobs with long specs ends early, and the next page continues.
TEST_F(ManagerTest, APageIsBoundedInBytes) {
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) {
    jobs::JobSpec spec = Spec();
    spec.datasets.assign(100, std::string(1000, 'x') + ".bin");
    ids.insert(ids.begin(), Submit(spec));
  }
  JobFilter filter = {.most = 100, .most_bytes = 250'000};
  std::vector<std::string> seen;
  int pages = 0;
  for (bool more = true; more; ++pages) {
    const JobPage page = manager_->List(filter);
    ASSERT_GE(page.jobs.size(), 1u);
    EXPECT_LE(page.jobs.size(), 2u);
    for (const JobPtr& job : page.jobs) seen.push_back(job->id);
    filter.before = page.jobs.back()->sequence;
    more = page.more;
  }
  EXPECT_EQ(pages, 5);
  EXPECT_EQ(seen, ids);
  filter = {.most = 100, .most_bytes = 1};
  EXPECT_EQ(manager_->List(filter).jobs.size(), 1u) << "one is always there";
}

}  // namespace
}  // namespace switchyard::server
