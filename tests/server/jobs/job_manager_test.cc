// What users ask for, and the way of a job that nothing befalls.
#include "server/jobs/job_manager.h"

#include "proto/support/errors.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ReasonIn(const absl::Status& status) { return rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason; }

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
  EXPECT_EQ(journal_.kept.begin()->second.attempt, 1) << "known before any worker heard of it";

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
  manager_->runs().OnTraining(1, first->epoch(), jobs::EvaluationResult{.step = 10, .loss = 2});
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

TEST_F(ManagerTest, TextIsPackedFirst) {
  jobs::JobSpec spec = Spec();
  spec.datasets = {"a.jsonl", "b.bin", "c.jsonl"};
  spec.evaluation = {"e.jsonl"};
  const std::string id = Begun(spec);
  ASSERT_EQ(host_.packs[id].size(), 1u);
  EXPECT_THAT(host_.packs[id][0].inputs, ElementsAre("a.jsonl", "c.jsonl"));
  EXPECT_THAT(host_.packs[id][0].counted, ElementsAre("b.bin"));
  EXPECT_EQ(host_.packs[id][0].output, id + "/datasets.bin");
  EXPECT_EQ(host_.packs[id][0].output_root, PackRoot::kCheckpoints);
  EXPECT_EQ(host_.packs[id][0].tokenizer, "demo");
  EXPECT_TRUE(trainers_[1]->assignments.empty());
  manager_->runs().OnPrepareProgress(id, 5, 9);
  EXPECT_EQ(Get(id)->prepared_bytes, 5);
  manager_->runs().OnPrepared(id,
                              PackedData{.tokens = 10, .trained_tokens = 10, .counted_tokens = 23});  // just a batch
  ASSERT_EQ(host_.packs[id].size(), 2u);
  EXPECT_THAT(host_.packs[id][1].inputs, ElementsAre("e.jsonl"));
  EXPECT_EQ(host_.packs[id][1].output, id + "/evaluation.bin");
  // A server after this one does not pack again what is ready.
  Restart();
  ConnectBoth();
  manager_->Tick();
  ASSERT_EQ(host_.packs[id].size(), 1u);
  EXPECT_EQ(host_.packs[id][0].output, id + "/evaluation.bin");
  manager_->runs().OnPrepared(id, PackedData{.tokens = 10, .trained_tokens = 1});
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
  const jobs::TrainingAssignment& assignment = trainers_[1]->assignments[0];
  ASSERT_EQ(assignment.data.size(), 2u);
  EXPECT_EQ(assignment.data[0].name, "b.bin");
  EXPECT_FALSE(assignment.data[0].of_job);
  EXPECT_EQ(assignment.data[1].name, "datasets.bin");
  EXPECT_TRUE(assignment.data[1].of_job);
  ASSERT_EQ(assignment.evaluation.size(), 1u);
}

TEST_F(ManagerTest, TextWithoutATargetFailsTheJob) {
  jobs::JobSpec spec = TextSpec();
  const std::string none = Begun(spec);
  manager_->runs().OnPrepared(none, PackedData{.tokens = 100});
  EXPECT_EQ(StateOf(none), jobs::JobState::kFailed);
  EXPECT_THAT(std::string(Get(none)->error.message()),
              HasSubstr("datasets: none of the 100 tokens of 1 file is a target"));
  EXPECT_EQ(ReasonIn(Get(none)->error), "BAD_FILE");
  spec.evaluation = {"e.jsonl"};
  const std::string evaluation = Submit(spec);
  manager_->Tick();
  manager_->runs().OnPrepared(evaluation, PackedData{.tokens = 100, .trained_tokens = 1});
  EXPECT_EQ(StateOf(evaluation), jobs::JobState::kPreparing);
  manager_->runs().OnPrepared(evaluation, PackedData{.tokens = 100});
  EXPECT_EQ(StateOf(evaluation), jobs::JobState::kFailed);
  EXPECT_THAT(std::string(Get(evaluation)->error.message()), HasSubstr("evaluation: none of the 100 tokens"));
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

TEST_F(ManagerTest, BadTextFailsTheJob) {
  const jobs::JobSpec spec = TextSpec();
  const std::string bad = Begun(spec);
  manager_->runs().OnPrepared(bad, absl::InvalidArgumentError("a.jsonl:3: no text"));
  EXPECT_EQ(StateOf(bad), jobs::JobState::kFailed);
  EXPECT_EQ(Get(bad)->error, absl::InvalidArgumentError("a.jsonl:3: no text"));
  const std::string few = Submit(spec);
  manager_->Tick();
  manager_->runs().OnPrepared(few, PackedData{.tokens = 32});
  EXPECT_EQ(StateOf(few), jobs::JobState::kFailed);
  EXPECT_EQ(Get(few)->error.message(), "datasets: dataset has 32 tokens, batch needs 33");
  EXPECT_EQ(ReasonIn(Get(few)->error), "BAD_FILE");
  jobs::JobSpec mixed = spec;
  mixed.datasets.push_back("b.bin");
  const std::string both = Submit(mixed);
  manager_->Tick();
  manager_->runs().OnPrepared(both, PackedData{.tokens = 9, .counted_tokens = 22});
  EXPECT_EQ(StateOf(both), jobs::JobState::kFailed);
  EXPECT_EQ(Get(both)->error.message(), "datasets: dataset has 31 tokens, batch needs 33");
  const std::string full = Submit(spec);
  manager_->Tick();
  manager_->runs().OnPrepared(full, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(StateOf(full), jobs::JobState::kPending) << "may pass";
  const std::string gone = Submit(spec);
  ASSERT_TRUE(manager_->Cancel(full).ok());
  manager_->Tick();
  manager_->runs().OnPrepared(gone, absl::NotFoundError("a.jsonl: not in the dataset root"));
  EXPECT_EQ(StateOf(gone), jobs::JobState::kPaused) << "it was there when the job was submitted";
  EXPECT_EQ(ReasonIn(Get(gone)->error), "DATASET_CHANGED");
}

TEST_F(ManagerTest, PauseAndResume) {
  const std::string id = Running();
  ASSERT_TRUE(manager_->Pause(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPausing);
  EXPECT_THAT(trainers_[2]->heard, ElementsAre(absl::StrCat("save ", trainers_[2]->epoch())));
  ASSERT_TRUE(manager_->Pause(id).ok()) << "already on its way";
  EXPECT_EQ(trainers_[2]->heard.size(), 1u);
  EXPECT_EQ(ReasonIn(manager_->Resume(id).status()), "JOB_STATE");
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  ASSERT_TRUE(manager_->Resume(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->assignments.back().attempt, 2);
  AllStart(10);
  EXPECT_THAT(ReasonOf(id), HasSubstr("goes on from step 10"));
}

TEST_F(ManagerTest, CancelInEveryState) {
  const std::string pending = Submit(Spec());
  ASSERT_TRUE(manager_->Cancel(pending).ok());
  EXPECT_EQ(StateOf(pending), jobs::JobState::kCancelled);
  ASSERT_TRUE(manager_->Cancel(pending).ok()) << "it is so";

  const std::string packing = Submit(TextSpec());
  ConnectBoth();
  manager_->Tick();
  ASSERT_TRUE(manager_->Cancel(packing).ok());
  EXPECT_EQ(StateOf(packing), jobs::JobState::kCancelling);
  EXPECT_THAT(host_.cancelled, ElementsAre(packing));
  manager_->runs().OnPrepared(packing, absl::CancelledError(""));
  EXPECT_EQ(StateOf(packing), jobs::JobState::kCancelled);

  const std::string forming = Submit(Spec());
  manager_->Tick();
  ASSERT_TRUE(manager_->Cancel(forming).ok());
  EXPECT_EQ(trainers_[1]->heard.back(), absl::StrCat("abort ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kLost, absl::AbortedError("told so"));
  EXPECT_EQ(StateOf(forming), jobs::JobState::kCancelled);

  const std::string running = Submit(Spec());
  manager_->Tick();
  AllStart();
  ASSERT_TRUE(manager_->Pause(running).ok());
  ASSERT_TRUE(manager_->Cancel(running).ok());
  EXPECT_EQ(trainers_[1]->heard.back(), absl::StrCat("save ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(running), jobs::JobState::kCancelled);
  EXPECT_EQ(ReasonOf(running), "its workers have stopped; it has done no step");

  const std::string done = Submit(Spec());
  manager_->Tick();
  AllStart();
  AllEnd(jobs::TrainOutcome::kFinished);
  for (const auto& [answer, asked] :
       {std::pair(manager_->Cancel(done), "cancel"), std::pair(manager_->Pause(done), "pause"),
        std::pair(manager_->Resume(done), "resume")}) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(answer.status().message(), absl::StrCat("job is SUCCEEDED: cannot ", asked));
    EXPECT_EQ(ReasonIn(answer.status()), "JOB_STATE");
  }
}

TEST_F(ManagerTest, CancelSavesFirst) {
  const std::string id = Running();
  Step(123);
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 123, .folder = "x"});
  Step(179);
  ASSERT_TRUE(manager_->Cancel(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelling);
  for (const WorkerId rank : {1, 2}) {
    EXPECT_THAT(trainers_[rank]->heard, ElementsAre(absl::StrCat("save ", trainers_[rank]->epoch())));
  }
  Step(180);  // was under way
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 180, .folder = "y"});
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_EQ(Get(id)->checkpoint->step, 180);
  EXPECT_EQ(ReasonOf(id), "its workers have stopped; saved at step 180");
}

TEST_F(ManagerTest, CancelWaitsForASaveOnlySoLong) {
  const std::string id = Running();
  Step(7);
  ASSERT_TRUE(manager_->Pause(id).ok());
  ASSERT_TRUE(manager_->Cancel(id).ok()) << "what a pause saves is not waited for longer";
  Pass(options_.limits.cancel_save - absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->heard.size(), 1u);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->heard.back(), absl::StrCat("now ", trainers_[2]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_EQ(ReasonOf(id), "its workers have stopped; steps 1 to 7 are not saved");
}

TEST_F(ManagerTest, ASaveThatFailsOrWorkersThatAreLostDoNotKeepAJobFromItsEnd) {
  for (const jobs::TrainOutcome outcome :
       {jobs::TrainOutcome::kLost, jobs::TrainOutcome::kFailed, jobs::TrainOutcome::kBlocked}) {
    Restart();
    const std::string id = Running();
    Step(4);
    manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 4, .folder = "x"});
    Step(5);
    ASSERT_TRUE(manager_->Cancel(id).ok());
    AllEnd(outcome, absl::ResourceExhaustedError("no space left"));
    EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
    EXPECT_THAT(ReasonOf(id), HasSubstr("no space left"));
    EXPECT_THAT(ReasonOf(id), testing::EndsWith("; step 5 is not saved"));
    EXPECT_TRUE(manager_->idle());
  }
}

TEST_F(ManagerTest, AJobWithoutWorkersYetStopsAtOnce) {
  const std::string id = Begun(TextSpec());
  manager_->runs().OnTrainerLost(2, "gone");
  manager_->runs().OnPrepared(id, PackedData{.tokens = 100, .trained_tokens = 100});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  EXPECT_EQ(Get(id)->note, "waits for workers: 1 of 2 are free");
  ASSERT_TRUE(manager_->Pause(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
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

TEST_F(ManagerTest, OldJobsThatAreOverAreForgotten) {
  options_.max_kept_jobs = 2;
  Restart();
  const std::string open = Submit(Spec());
  const std::string over = Submit(Spec(), "request");
  ASSERT_TRUE(manager_->Cancel(over).ok());
  const std::string last = Submit(Spec());
  EXPECT_EQ(manager_->Get(over).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(manager_->Get(open).ok());
  EXPECT_EQ(journal_.kept.size(), 2u);
  EXPECT_FALSE(manager_->Submit("request", Spec())->existed);
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

TEST_F(ManagerTest, TooLongARuntimeEndsWithACheckpoint) {
  jobs::JobSpec spec = Spec();
  spec.max_runtime_seconds = 60;
  const std::string id = Running(spec);
  Pass(absl::Seconds(40));
  ASSERT_TRUE(manager_->Pause(id).ok());
  AllEnd(jobs::TrainOutcome::kStopped);
  Pass(absl::Hours(1));  // paused time does not count
  ASSERT_TRUE(manager_->Resume(id).ok());
  Pass(absl::Seconds(1));
  AllStart();
  Pass(absl::Seconds(19));
  EXPECT_EQ(trainers_[1]->heard.size(), 1u);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->heard.back(), absl::StrCat("save ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_EQ(Get(id)->error, absl::DeadlineExceededError("max_runtime_seconds: ran 60 s of 60"));
}

}  // namespace
}  // namespace switchyard::server
