// Small jobs that pack their experts by a test's times.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/packing/packing_journal.h"

namespace switchyard::train {

inline constexpr int64_t kPlenty = int64_t{1} << 40;

// Decisions come after steps 3, 5, 7 …
class PackedJobFixture : public JobFixture {
 protected:
  using Files = std::map<std::string, std::string>;
  using Times = std::function<jobs::PackingTimes(int64_t step, const StepReport& report)>;

  static jobs::PackingTimes Waiting(int64_t step_ms) {
    return {.experts_ns = 1000,
            .all_to_all_ns = 4000,
            .micro_ops = 1,
            .step_ns = step_ms * 1'000'000,
            .sums_ns = 1'000'000,
            .steps = 1};
  }
  // All-to-alls take long; the first doubling helps, the second does not: 1, 2, 4 replicas, and 2 from step 8 on.
  static jobs::PackingTimes Measured(int64_t step, const StepReport&) {
    return Waiting(step <= 3 ? 100 : step <= 5 ? 80 : 90);
  }
  // Times with which packing does not pay.
  static jobs::PackingTimes Covered(int64_t, const StepReport&) { return {.experts_ns = 1, .micro_ops = 1}; }
  // Each doubling helps.
  static jobs::PackingTimes Helping(int64_t step, const StepReport&) { return Waiting(100 - step); }

  jobs::JobSpec Packed() const {
    jobs::JobSpec spec = Spec();
    spec.communication = {.mode = jobs::CommMode::kFull,
                          .piece_bytes = 1024,
                          .packing = {.rule = jobs::PackingRule::kTrials, .replicas = 0}};
    return spec;
  }
  static AttemptOptions Attempt(int64_t attempt, const Times& times, int world = 4) {
    AttemptOptions options;
    options.world = world;
    options.attempt = attempt;
    options.packing = {.first_step = 3, .every_steps = 2};
    options.packing_times = times;
    return options;
  }
  static AttemptOptions TornAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == at) comm->Abort("torn down by the test");
    };
    return options;
  }
  static AttemptOptions StoppedAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == at) job->Stop(jobs::StopKind::kSave);
    };
    return options;
  }
  void Finishes(const std::vector<RankStory>& stories) {
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      EXPECT_THAT(story.warnings, testing::IsEmpty());
    }
  }
  // The journal in a form that tests compare: "10:1>2 14:2>4", with the reasons.
  std::string Journal() const {
    const absl::StatusOr<PackingJournal> journal = DecodePackingJournal(ReadAll(JobPath(kPackingJournalName)));
    if (!journal.ok()) return journal.status().ToString();
    std::string text;
    for (const jobs::PackingDecision& each : journal->decisions) {
      absl::StrAppend(&text, text.empty() ? "" : " ", each.step, ":", each.from, ">", each.to, " ",
                      jobs::PackingReasonName(each.reason));
    }
    return text;
  }
  // The final files of a run without faults, and its journal; the job is removed afterwards.
  Files Whole() {
    const std::vector<RankStory> stories = Run(Packed(), Attempt(1, Measured));
    Finishes(stories);
    EXPECT_EQ(Journal(), "3:1>2 grows 5:2>4 grows 7:4>2 undone");
    whole_journal_ = ReadAll(JobPath(kPackingJournalName));
    Files files = FilesOfStep(12);
    ForgetJob();
    return files;
  }

  std::string whole_journal_;
};

}  // namespace switchyard::train
