// What users ask for: submits, lists, watches, and the way of a job that nothing disturbs.
#include "server/jobs/job_manager.h"

#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;

TEST_F(ManagerTest, RanksAreToldWhetherTheirLinksAreEncrypted) {
  for (const bool encrypt : {false, true}) {
    options_.encrypt_links = encrypt;
    Restart();
    FakeTrainer* const first = Connect(1);
    FakeTrainer* const second = Connect(2);
    Submit(Spec(), encrypt ? "encrypted" : "plain");
    manager_->Tick();
    ASSERT_FALSE(first->assignments.empty() || second->assignments.empty());
    EXPECT_EQ(first->assignments[0].encrypt_links, encrypt);
    EXPECT_EQ(second->assignments[0].encrypt_links, encrypt);
  }
}

TEST_F(ManagerTest, AJobRunsToItsEnd) {
  FakeTrainer* first = Connect(1);
  FakeTrainer* second = Connect(2);
  const std::string id = Submit(Spec(), "request");
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_TRUE(first->assignments.empty());
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  ASSERT_EQ(first->assignments.size(), 1u);
  ASSERT_EQ(second->assignments.size(), 1u);
  EXPECT_EQ(first->assignments[0].rank, 0);
  EXPECT_EQ(second->assignments[0].rank, 1);
  EXPECT_EQ(second->assignments[0].world, 2);
  EXPECT_EQ(second->assignments[0].attempt, 1);
  EXPECT_EQ(second->assignments[0].job_id, id);
  EXPECT_EQ(first->assignments[0].store_token, second->assignments[0].store_token);
  EXPECT_TRUE(host_.stores.contains(first->assignments[0].store_token));
  EXPECT_EQ(journal_.kept.begin()->second.attempt, 1) << "written before any worker receives it";

  manager_->runs().OnTraining(1, first->epoch(), TrainingStarted{.step = 0});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing) << "one of two has started";
  manager_->runs().OnTraining(2, first->epoch(), TrainingStarted{.step = 0});
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  manager_->runs().OnTraining(2, first->epoch(), std::string("rank 1 says it"));
  EXPECT_EQ(Get(id)->note, "");
  manager_->runs().OnTraining(1, first->epoch(), std::string("evaluation after step 0: 1 of 2 windows"));
  EXPECT_EQ(Get(id)->note, "evaluation after step 0: 1 of 2 windows");
  Step(1);
  EXPECT_EQ(Get(id)->note, "");
  host_.now += absl::Seconds(9);
  Step(10);
  EXPECT_EQ(Get(id)->progress->step, 10);
  EXPECT_DOUBLE_EQ(Get(id)->seconds_left, 90);
  manager_->runs().OnTraining(1, first->epoch(), jobs::EvaluationReport{.result = {.step = 10, .loss = 2}});
  manager_->runs().OnTraining(1, first->epoch(), jobs::SavedCheckpoint{.step = 10, .folder = "x"});
  EXPECT_EQ(Get(id)->checkpoint->folder, "x");
  AllEnd(jobs::TrainOutcome::kFinished);
  EXPECT_EQ(StateOf(id), jobs::JobState::kSucceeded);
  EXPECT_GT(Get(id)->ended_unix_ms, 0);
  EXPECT_EQ(journal_.kept.begin()->second.state, jobs::JobState::kSucceeded);
  EXPECT_TRUE(host_.stores.empty());
  EXPECT_TRUE(manager_->idle());
  EXPECT_THAT(sink_.lines, ElementsAre("started 0", "step 1", "step 10", "evaluated 10", "ended SUCCEEDED"));
  std::vector<jobs::JobState> states;
  const JobPtr job = Get(id);
  for (const StateChange& change : job->changes) {
    states.push_back(change.state);
    EXPECT_FALSE(change.reason.empty());
  }
  EXPECT_THAT(states, ElementsAre(jobs::JobState::kPending, jobs::JobState::kPreparing, jobs::JobState::kRunning,
                                  jobs::JobState::kSucceeded));
}

TEST_F(ManagerTest, WarningsOfAllRanksAreKeptEachOnce) {
  const std::string id = Begun();
  const int64_t epoch = trainers_[1]->epoch();
  manager_->runs().OnTraining(1, epoch, TrainingStarted{.step = 4, .warnings = {"a damaged checkpoint", "of all"}});
  manager_->runs().OnTraining(2, epoch, TrainingStarted{.step = 4, .warnings = {"of all", "of rank 1"}});
  EXPECT_EQ(ReasonOf(id), "attempt 1 goes on from step 4 on 2 workers; a damaged checkpoint; of all; of rank 1");
}

TEST_F(ManagerTest, ARequestIsMadeOnce) {
  const std::string id = Submit(Spec(), "request");
  const auto again = manager_->Submit("request", Spec());
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->existed);
  EXPECT_EQ(again->job->id, id);
  jobs::JobSpec other = Spec();
  other.seed = 1;
  const absl::Status status = manager_->Submit("request", other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(), absl::StrCat("request_id: \"request\" has made ", id, " of another spec"));
  EXPECT_NE(Submit(other), Submit(other)) << "without an id each is a job of its own";
  Restart();
  EXPECT_TRUE(manager_->Submit("request", Spec())->existed);
}

TEST_F(ManagerTest, WhatCannotBeIsRefused) {
  jobs::JobSpec spec = Spec();
  spec.steps = 0;
  EXPECT_EQ(manager_->Submit("", spec).status().code(), absl::StatusCode::kInvalidArgument);
  absl::Status status = manager_
                            ->Submit("",
                                     [] {
                                       jobs::JobSpec wide = Spec(3);
                                       wide.batch_sequences = 3;
                                       return wide;
                                     }())
                            .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "spec.workers: needs 3 ranks, 0 alive, 2 configured");
  EXPECT_EQ(ReasonIn(status), "TOO_FEW_WORKERS");
  journal_.error = absl::ResourceExhaustedError("full");
  status = manager_->Submit("", Spec()).status();
  EXPECT_EQ(ReasonIn(status), "DISK_FULL");
  journal_.error = {};
  EXPECT_TRUE(manager_->List({}).jobs.empty());
  options_.max_open_jobs = 1;
  Configure(0);
  EXPECT_EQ(ReasonIn(manager_->Submit("", Spec()).status()), "NO_TRAINING");
  Configure(2);
  Submit(Spec());
  EXPECT_EQ(ReasonIn(manager_->Submit("", Spec()).status()), "TOO_MANY_JOBS");
  for (const auto& answer : {manager_->Get("job-x"), manager_->Pause("job-x"), manager_->Cancel("job-x")}) {
    EXPECT_EQ(ReasonIn(answer.status()), "JOB_NOT_FOUND");
  }
}

TEST_F(ManagerTest, ASkippedStepIsSaid) {
  const std::string id = Running();
  jobs::TrainProgress progress;
  progress.step = 3;
  progress.skipped = true;
  manager_->runs().OnTraining(1, trainers_.at(1)->epoch(), progress);
  EXPECT_EQ(Get(id)->note, "step 3 was skipped: none of its tokens is a target");
  Step(4);
  EXPECT_EQ(Get(id)->note, "");
}

TEST_F(ManagerTest, TwoJobsAtOnceAndTheRestInOrder) {
  for (int id = 1; id <= 2; ++id) Connect(id);
  const std::string one = Submit(Spec(1)), two = Submit(Spec(1)), three = Submit(Spec(2)), four = Submit(Spec(1));
  manager_->Tick();
  EXPECT_EQ(StateOf(one), jobs::JobState::kPreparing);
  EXPECT_EQ(StateOf(two), jobs::JobState::kPreparing);
  EXPECT_NE(trainers_[1]->epoch(), trainers_[2]->epoch());
  EXPECT_NE(trainers_[1]->assignments[0].store_token, trainers_[2]->assignments[0].store_token);
  EXPECT_EQ(host_.stores.size(), 2u);
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), TrainingStarted{.step = 0});
  manager_->runs().OnTraining(2, trainers_[2]->epoch(), TrainingStarted{.step = 0});
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}});
  manager_->Tick();
  EXPECT_EQ(StateOf(one), jobs::JobState::kSucceeded);
  EXPECT_EQ(StateOf(two), jobs::JobState::kRunning);
  EXPECT_EQ(StateOf(four), jobs::JobState::kPending) << "three is before it";
  EXPECT_EQ(Get(three)->note, "waits for workers: 1 of 2 are free");
  manager_->runs().OnTraining(2, trainers_[2]->epoch(), jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}});
  manager_->Tick();
  EXPECT_EQ(StateOf(three), jobs::JobState::kPreparing);
  EXPECT_EQ(StateOf(four), jobs::JobState::kPending);
}

TEST_F(ManagerTest, ListPagesAndFilters) {
  jobs::JobSpec labelled = Spec();
  labelled.labels = {{"team", "a"}};
  const std::string one = Submit(labelled), two = Submit(Spec()), three = Submit(labelled);
  ASSERT_TRUE(manager_->Cancel(two).ok());
  const auto ids = [](const JobPage& page) {
    std::vector<std::string> list;
    for (const JobPtr& job : page.jobs) list.push_back(job->id);
    return list;
  };
  EXPECT_THAT(ids(manager_->List({})), ElementsAre(three, two, one));
  JobPage page = manager_->List({.most = 2});
  EXPECT_THAT(ids(page), ElementsAre(three, two));
  EXPECT_TRUE(page.more);
  page = manager_->List({.most = 2, .before = page.jobs.back()->sequence});
  EXPECT_THAT(ids(page), ElementsAre(one));
  EXPECT_FALSE(page.more);
  EXPECT_THAT(ids(manager_->List({.states = {jobs::JobState::kCancelled}})), ElementsAre(two));
  EXPECT_THAT(ids(manager_->List({.labels = {{"team", "a"}}})), ElementsAre(three, one));
  EXPECT_TRUE(manager_->List({.labels = {{"team", "b"}}}).jobs.empty());
}

TEST_F(ManagerTest, OldJobsStayUntilTheyAreDeleted) {
  options_.max_jobs = 2;
  Restart();
  Submit(Spec());
  const std::string over = Submit(Spec(), "request");
  ASSERT_TRUE(manager_->Cancel(over).ok());
  for (const absl::Status& refused : {manager_->CheckAdmission(Spec()), manager_->Submit("", Spec()).status()}) {
    EXPECT_EQ(ReasonIn(refused), "TOO_MANY_JOBS");
    EXPECT_EQ(refused.message(), "jobs: limit 2; delete old ones (switchyard train delete ID)");
  }
  EXPECT_TRUE(manager_->Submit("request", Spec())->existed) << "no job is forgotten";
  ASSERT_TRUE(manager_->Delete(over).ok());
  EXPECT_TRUE(manager_->Submit("", Spec()).ok());
}

// No job is there whose row could be written again to see whether the journal works.
TEST_F(ManagerTest, TheFirstJobMayTryTheJournalAgain) {
  journal_.error = absl::ResourceExhaustedError("full");
  EXPECT_EQ(ReasonIn(manager_->Submit("", Spec()).status()), "DISK_FULL");
  journal_.error = absl::OkStatus();
  manager_->Tick();
  EXPECT_TRUE(manager_->CheckAdmission(Spec()).ok()) << manager_->CheckAdmission(Spec());
  EXPECT_TRUE(manager_->Submit("", Spec()).ok());
}

TEST_F(ManagerTest, AWatcherSeesEveryChange) {
  ConnectBoth();
  const std::string id = Submit(Spec());
  std::vector<std::string> seen;
  const auto watcher = manager_->Watch(id, [&seen](const JobPtr& job) {
    seen.push_back(
        absl::StrCat(jobs::JobStateName(job->state), " ", job->progress.has_value() ? job->progress->step : 0));
  });
  ASSERT_TRUE(watcher.ok());
  manager_->Tick();
  AllStart();
  Step(1);
  AllEnd(jobs::TrainOutcome::kFinished);
  EXPECT_EQ(seen.front(), "PENDING 0");
  EXPECT_THAT(seen, testing::IsSupersetOf({"PREPARING 0", "RUNNING 0", "RUNNING 1", "SUCCEEDED 1"}));
  EXPECT_EQ(seen.back(), "SUCCEEDED 1");
  manager_->Unwatch(*watcher);
  for (size_t i = 0; i < JobBook::kMaxWatchers; ++i) ASSERT_TRUE(manager_->Watch(id, [](const JobPtr&) {}).ok());
  EXPECT_EQ(ReasonIn(manager_->Watch(id, [](const JobPtr&) {}).status()), "TOO_MANY_STREAMS");
}

}  // namespace
}  // namespace switchyard::server
