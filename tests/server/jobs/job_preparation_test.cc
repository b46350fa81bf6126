// Text that becomes tokens before its job gets workers: what is packed, and text that cannot be trained on.
#include "server/jobs/run/job_preparation.h"

#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
                              PackedData{.tokens = 10, .trained_tokens = 10, .counted_tokens = 23});  // exactly a batch
  ASSERT_EQ(host_.packs[id].size(), 2u);
  EXPECT_THAT(host_.packs[id][1].inputs, ElementsAre("e.jsonl"));
  EXPECT_EQ(host_.packs[id][1].output, id + "/evaluation.bin");
  // The next server does not pack again files that are ready.
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

// Text of each evaluation set is a file of its own.
TEST_F(ManagerTest, TextOfEvaluationSetsStaysApart) {
  jobs::JobSpec spec = Spec();
  spec.evaluation = {"a.jsonl", "b.jsonl", "c.bin", "d.jsonl"};
  spec.evaluation_names = {"x", "y", "x", "x"};
  const std::string id = Begun(spec);
  ASSERT_EQ(host_.packs[id].size(), 1u);
  EXPECT_THAT(host_.packs[id][0].inputs, ElementsAre("a.jsonl", "d.jsonl"));
  EXPECT_EQ(host_.packs[id][0].output, id + "/evaluation-0.bin");
  manager_->runs().OnPrepared(id, PackedData{.tokens = 10, .trained_tokens = 1});
  Restart();  // the next server packs only what is left
  ConnectBoth();
  manager_->Tick();
  ASSERT_EQ(host_.packs[id].size(), 1u);
  EXPECT_THAT(host_.packs[id][0].inputs, ElementsAre("b.jsonl"));
  EXPECT_EQ(host_.packs[id][0].output, id + "/evaluation-1.bin");
  manager_->runs().OnPrepared(id, PackedData{.tokens = 10, .trained_tokens = 1});
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
  EXPECT_THAT(trainers_[1]->assignments[0].evaluation,
              ElementsAre(jobs::TrainFile{false, "c.bin", 0}, jobs::TrainFile{true, "evaluation-0.bin", 0},
                          jobs::TrainFile{true, "evaluation-1.bin", 1}));
  EXPECT_EQ(JobPreparation::NumDatasetOutputs(spec), 1u);
  EXPECT_THAT(JobPreparation::Outputs(spec), ElementsAre("", "evaluation-0.bin", "evaluation-1.bin"));
  // As a server packed them before sets had names, whose jobs go on.
  spec.evaluation_names.clear();
  EXPECT_THAT(JobPreparation::Outputs(spec), ElementsAre("", "evaluation.bin"));
}

TEST_F(ManagerTest, ASetWithoutATargetFailsTheJob) {
  jobs::JobSpec spec = Spec();
  spec.evaluation = {"a.bin", "b.jsonl"};
  spec.evaluation_names = {"a", "b"};
  const std::string id = Begun(spec);
  manager_->runs().OnPrepared(id, PackedData{.tokens = 100});
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_THAT(std::string(Get(id)->error.message()),
              HasSubstr("evaluation, set of \"b.jsonl\": none of the 100 tokens of 1 file is a target"));
}

// Each dataset with a weight is a file of its own, in the spec's order.
TEST_F(ManagerTest, TextWithWeightsStaysApart) {
  jobs::JobSpec spec = Spec();
  spec.datasets = {"a.jsonl", "b.bin", "c.jsonl"};
  spec.dataset_weights = {1, 2, 3};
  spec.evaluation = {"e.jsonl"};
  const std::string id = Begun(spec);
  const PackedData packed = {.tokens = 17, .trained_tokens = 1};  // a window, less than a batch
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(host_.packs[id].size(), i + 1);
    const std::vector<const char*> inputs = {"a.jsonl", "c.jsonl", "e.jsonl"};
    const std::vector<const char*> outputs = {"/dataset-0.bin", "/dataset-2.bin", "/evaluation.bin"};
    EXPECT_THAT(host_.packs[id][i].inputs, ElementsAre(inputs[i]));
    EXPECT_EQ(host_.packs[id][i].output, id + outputs[i]);
    if (i == 1) {  // the next server packs only what is left
      Restart();
      ConnectBoth();
      manager_->Tick();
      ASSERT_EQ(host_.packs[id].size(), 1u);
      EXPECT_EQ(host_.packs[id][0].output, id + "/dataset-2.bin");
      host_.packs[id].insert(host_.packs[id].begin(), PackRequest());
    }
    manager_->runs().OnPrepared(id, packed);
  }
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
  const jobs::TrainingAssignment& assignment = trainers_[1]->assignments[0];
  EXPECT_THAT(assignment.data, ElementsAre(jobs::TrainFile{true, "dataset-0.bin"}, jobs::TrainFile{false, "b.bin"},
                                           jobs::TrainFile{true, "dataset-2.bin"}));
  EXPECT_THAT(assignment.evaluation, ElementsAre(jobs::TrainFile{true, "evaluation.bin"}));
}

TEST_F(ManagerTest, TextWithAWeightFillsASequence) {
  jobs::JobSpec spec = Spec();
  spec.datasets = {"a.bin", "b.jsonl"};
  spec.dataset_weights = {1, 2};
  const std::string few = Begun(spec);
  manager_->runs().OnPrepared(few, PackedData{.documents = 2, .tokens = 8, .trained_tokens = 8});
  EXPECT_EQ(StateOf(few), jobs::JobState::kFailed);
  EXPECT_EQ(Get(few)->error.message(), "datasets[1]: \"b.jsonl\" has a weight, but its 8 tokens fill no window of 8");
  EXPECT_EQ(ReasonIn(Get(few)->error), "BAD_FILE");
  spec.document_mask = true;
  spec.packing = jobs::WindowPacking::kBestFit;
  const std::string enough = Submit(spec);
  manager_->Tick();
  manager_->runs().OnPrepared(enough, PackedData{.documents = 2, .tokens = 3, .trained_tokens = 3});
  EXPECT_EQ(StateOf(enough), jobs::JobState::kPreparing);
}

// A window may have few tokens.
TEST_F(ManagerTest, TextInWholeDocumentsNeedsNoBatch) {
  jobs::JobSpec spec = TextSpec();
  spec.document_mask = true;
  spec.packing = jobs::WindowPacking::kBestFit;
  const std::string id = Begun(spec);
  manager_->runs().OnPrepared(id, PackedData{.tokens = 5, .trained_tokens = 1});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  ASSERT_EQ(trainers_[1]->assignments.size(), 1u);
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

const PackedData kEnough = {.tokens = 100, .trained_tokens = 100};

// Jobs that wait pack their text one after the other, and keep their places.
TEST_F(ManagerTest, TextIsPackedWhileAnotherJobTrains) {
  Running();
  const std::string first = Submit(TextSpec()), second = Submit(TextSpec());
  manager_->Tick();
  EXPECT_EQ(StateOf(first), jobs::JobState::kPreparing);
  EXPECT_EQ(ReasonOf(first), "its text is packed while it waits");
  EXPECT_EQ(host_.packs[first].size(), 1u);
  EXPECT_EQ(StateOf(second), jobs::JobState::kPending);
  manager_->runs().OnPrepared(first, kEnough);
  EXPECT_EQ(StateOf(first), jobs::JobState::kPending);
  EXPECT_EQ(ReasonOf(first), "its text is packed");
  EXPECT_EQ(Get(first)->attempt, 0);
  manager_->Tick();
  EXPECT_EQ(Get(first)->note, "waits for workers: 0 of 2 are free");
  EXPECT_EQ(StateOf(second), jobs::JobState::kPreparing);
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 2u) << "the first begins at once";
  EXPECT_EQ(trainers_[1]->assignments[1].job_id, first);
  EXPECT_EQ(host_.packs[first].size(), 1u);
  // The second is packed when its turn comes, and waits for no other text.
  AllStart();
  manager_->runs().OnPrepared(second, kEnough);
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 3u);
  EXPECT_EQ(trainers_[1]->assignments[2].job_id, second);
}

// A job whose text is still packed at its turn holds back those behind it, as one that waits for workers.
TEST_F(ManagerTest, AJobThatPacksEarlyKeepsItsPlace) {
  Running();
  const std::string first = Submit(Spec()), text = Submit(TextSpec()), last = Submit(Spec());
  manager_->Tick();
  EXPECT_EQ(StateOf(text), jobs::JobState::kPreparing);
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 2u);
  EXPECT_EQ(trainers_[1]->assignments[1].job_id, first);
  AllStart();
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();
  EXPECT_EQ(StateOf(last), jobs::JobState::kPending) << "it is the text's turn";
  EXPECT_EQ(trainers_[1]->assignments.size(), 2u);
  manager_->runs().OnPrepared(text, kEnough);
  manager_->Tick();
  ASSERT_EQ(trainers_[1]->assignments.size(), 3u);
  EXPECT_EQ(trainers_[1]->assignments[2].job_id, text);
}

TEST_F(ManagerTest, FewJobsWaitWithPackedText) {
  Running();
  std::vector<std::string> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(Submit(TextSpec()));
  for (int i = 0; i < 2; ++i) {
    manager_->Tick();
    EXPECT_EQ(StateOf(waiting[i]), jobs::JobState::kPreparing) << i;
    manager_->runs().OnPrepared(waiting[i], kEnough);
  }
  manager_->Tick();
  EXPECT_EQ(StateOf(waiting[2]), jobs::JobState::kPending);
  EXPECT_TRUE(host_.packs[waiting[2]].empty());
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();  // the first begins
  manager_->Tick();
  EXPECT_EQ(StateOf(waiting[2]), jobs::JobState::kPreparing);
}

// Its pack may take long to end, or hang.
TEST_F(ManagerTest, AJobThatStopsWhileItPacksHoldsNobody) {
  Running();
  const std::string text = Submit(TextSpec()), next = Submit(Spec());
  manager_->Tick();
  ASSERT_TRUE(manager_->Cancel(text).ok());
  EXPECT_EQ(StateOf(text), jobs::JobState::kCancelling);
  AllEnd(jobs::TrainOutcome::kFinished);
  manager_->Tick();
  EXPECT_EQ(StateOf(next), jobs::JobState::kPreparing);
  manager_->runs().OnPrepared(text, absl::CancelledError("packing is no longer wanted"));
  EXPECT_EQ(StateOf(text), jobs::JobState::kCancelled);
}

TEST_F(ManagerTest, AServerThatIsKilledWhileAJobPacksEarlyPacksAgain) {
  Running();
  const std::string text = Submit(TextSpec());
  manager_->Tick();
  ASSERT_EQ(StateOf(text), jobs::JobState::kPreparing);
  manager_->Drain();
  EXPECT_EQ(host_.cancelled, std::vector<std::string>{text});
  manager_->runs().OnPrepared(text, absl::CancelledError("packing is no longer wanted"));
  EXPECT_EQ(StateOf(text), jobs::JobState::kPending);
  Restart();
  ConnectBoth();
  manager_->Tick();  // the running one begins again
  manager_->Tick();
  EXPECT_EQ(StateOf(text), jobs::JobState::kPreparing);
  EXPECT_EQ(host_.packs[text].size(), 1u);
}

TEST_F(ManagerTest, EarlyTextThatIsBadFailsBeforeItsTurn) {
  Running();
  const std::string bad = Submit(TextSpec()), next = Submit(TextSpec()), paused = Submit(TextSpec());
  manager_->Tick();
  manager_->runs().OnPrepared(bad, absl::InvalidArgumentError("a.jsonl:3: no text"));
  EXPECT_EQ(StateOf(bad), jobs::JobState::kFailed);
  manager_->Tick();
  ASSERT_EQ(StateOf(next), jobs::JobState::kPreparing);
  manager_->runs().OnPrepared(next, absl::UnavailableError("the disk is slow"));
  EXPECT_EQ(StateOf(next), jobs::JobState::kPending);
  manager_->Tick();
  EXPECT_EQ(StateOf(next), jobs::JobState::kPending) << "pauses after a loss";
  ASSERT_EQ(StateOf(paused), jobs::JobState::kPreparing);
  ASSERT_TRUE(manager_->Pause(paused).ok());
  EXPECT_EQ(host_.cancelled, std::vector<std::string>{paused});
  manager_->runs().OnPrepared(paused, absl::CancelledError("packing is no longer wanted"));
  EXPECT_EQ(StateOf(paused), jobs::JobState::kPaused);
  Restart();  // while nothing is packed
  ConnectBoth();
  EXPECT_TRUE(manager_->idle());
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

}  // namespace
}  // namespace switchyard::server
