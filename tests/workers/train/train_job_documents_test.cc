// Jobs whose data has documents, with and without borders between them.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

class TrainJobDocumentsTest : public JobFixture {
 protected:
  TrainJobDocumentsTest() { WriteDocuments(); }

  void WriteDocuments() {
    WriteTokens("a.bin", 0, 400, 256, /*trained=*/true, {0, 3, 4, 17, 30, 100, 101, 250, 255, 300, 399});
    WriteTokens("sub/b.bin", 1000, 300, 256, /*trained=*/true, {0, 7, 50, 61, 99, 111, 119, 177, 250, 277});
    WriteTokens("held_out.bin", 5000, 61, 256, /*trained=*/true, {0, 5, 21, 40});
  }
  jobs::JobSpec Masked() const {
    jobs::JobSpec spec = Spec();
    spec.document_mask = true;
    return spec;
  }
  // Weights, masters and moments of an undisturbed run.
  std::map<std::string, std::string> Parameters(const jobs::JobSpec& spec, int world) {
    std::map<std::string, std::string> files = Undisturbed(spec, world);
    std::erase_if(files, [](const auto& file) { return !absl::EndsWith(file.first, ".safetensors"); });
    return files;
  }
};

TEST_F(TrainJobDocumentsTest, BordersChangeWhatIsTrainedAndEvaluated) {
  const std::vector<RankStory> masked = Run(Masked(), {});
  ASSERT_EQ(masked[0].end.outcome, jobs::TrainOutcome::kFinished) << masked[0].end.status;
  ForgetJob();
  const std::vector<RankStory> joined = Run(Spec(), {});
  ASSERT_EQ(joined[0].end.outcome, jobs::TrainOutcome::kFinished) << joined[0].end.status;
  EXPECT_NE(masked[0].steps[0].report.loss, joined[0].steps[0].report.loss);
  // Of the last tokens of documents 5, 21 and 40 are no targets; 60 are in windows of 12.
  ASSERT_EQ(joined[0].evaluations.size(), 1u);
  EXPECT_EQ(joined[0].evaluations[0].tokens, 60);
  ASSERT_EQ(masked[0].evaluations.size(), 1u);
  EXPECT_EQ(masked[0].evaluations[0].tokens, 57);
}

TEST_F(TrainJobDocumentsTest, WithoutTheMaskDocumentsAreNotSeen) {
  const auto with_documents = Parameters(Spec(), 2);
  WriteTokens("a.bin", 0, 400);
  WriteTokens("sub/b.bin", 1000, 300);
  EXPECT_TRUE(Parameters(Spec(), 2) == with_documents);
  // With it a file of one document has the bits of before, too.
  EXPECT_TRUE(Parameters(Masked(), 2) == with_documents);
  WriteDocuments();
  EXPECT_FALSE(Parameters(Masked(), 2) == with_documents);
}

TEST_F(TrainJobDocumentsTest, AJobThatGoesOnHasTheSameBits) {
  for (const int world : {1, 2}) {
    const auto whole = Undisturbed(Masked(), world);
    for (const int64_t at : {1, 7}) {
      AttemptOptions options = {.world = world};
      options.on_step = [at](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
        if (progress.step == at) job->Stop(jobs::StopKind::kSave);
      };
      EXPECT_EQ(Run(Masked(), options)[0].end.outcome, jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> resumed = Run(Masked(), {.world = world, .attempt = 2});
      EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
      EXPECT_TRUE(FilesOfStep(12) == whole) << world << " ranks, stopped after step " << at;
      ForgetJob();
    }
  }
}

TEST_F(TrainJobDocumentsTest, ACheckpointOfTheOtherKindIsRefused) {
  AttemptOptions options;
  options.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 4) job->Stop(jobs::StopKind::kSave);
  };
  EXPECT_EQ(Run(Spec(), options)[0].end.outcome, jobs::TrainOutcome::kStopped);
  const std::vector<RankStory> stories = Run(Masked(), {.attempt = 2});
  EXPECT_NE(stories[0].end.outcome, jobs::TrainOutcome::kFinished);
  EXPECT_THAT(std::string(stories[0].end.status.message()), HasSubstr("document_mask: was not there, is on"));
}

// Chunks change the order in which an expert's rows are added; sums in pieces beside them change nothing.
TEST_F(TrainJobDocumentsTest, SumsBesideChunksHaveTheBitsOfSumsBehindBackward) {
  std::vector<std::map<std::string, std::string>> ends;
  for (const int32_t chunks : {1, 3}) {
    jobs::JobSpec spec = Masked();
    spec.communication = {.mode = jobs::CommMode::kArLast,
                          .granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks}};
    ends.push_back(Parameters(spec, 2));
    spec.communication.mode = jobs::CommMode::kPreempt;
    spec.communication.piece_bytes = 1024;
    EXPECT_TRUE(Parameters(spec, 2) == ends.back()) << chunks << " chunks";
  }
  EXPECT_FALSE(ends[0] == ends[1]);
}

// Every token that is trained begins a document.
TEST_F(TrainJobDocumentsTest, DataWithoutATargetWithinADocumentIsRefused) {
  std::vector<int64_t> each;
  for (int64_t token = 0; token < 300; ++token) each.push_back(token);
  WriteTokens("a.bin", 0, 300, 256, /*trained=*/true, each);
  WriteTokens("sub/b.bin", 1000, 300, 256, /*trained=*/true, each);
  ExpectEnd(Run(Masked(), {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: none of the 600 tokens of 2 files is a target in a window of 12 tokens, at least 1 is wanted");
}

}  // namespace
}  // namespace switchyard::train
