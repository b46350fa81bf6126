// Packing of experts while a job trains: by all ranks' times, by a journal, and not without room.
#include "workers/train/packing/expert_packer.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/train/training_group.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

constexpr int kWorld = 4;

// A group of ranks with a packer each.  Steps are the trainer's, their times are the test's.
class PackedGroup {
 public:
  // On every rank.
  using Journal = std::function<absl::Status(int rank, const jobs::PackingDecision& decision)>;

  // available_bytes: of rank 2.
  PackedGroup(const TrainingGolden& golden, const jobs::PackingController& controller, ExpertPackerOptions options,
              const Journal& journal = nullptr)
      : golden_(golden),
        group_(golden.dir, {.dtype = DType::kF64, .world = kWorld, .packing = controller.packing()}),
        packers_(kWorld) {
    for (const absl::Status& status : group_.OnEach([&](int r) -> absl::Status {
           ExpertPackerOptions mine = options;
           if (journal) {
             mine.journal = [this, r, journal](const jobs::PackingDecision& decision) {
               EXPECT_EQ(packers_[r]->controller().packing(), decision.from);
               EXPECT_EQ(packers_[r]->groups().packing(), decision.from);
               return journal(r, decision);
             };
           }
           if (r != 2) mine.available_bytes = nullptr;
           ASSIGN_OR_RETURN(packers_[r], ExpertPacker::Create(&group_.trainer(r), &group_.parameters(r), group_.comm(r),
                                                              controller, std::move(mine), test::Soon()));
           return absl::OkStatus();
         })) {
      SY_CHECK_OK(status);
    }
  }

  // Runs a step, then returns the ranks' decision, which must be equal, or an error.  all_to_all[r]: seconds that rank
  // r reports for waiting, beside one for experts.  total: of the step; if not given, each step is shorter than the
  // last.
  absl::StatusOr<std::optional<jobs::PackingDecision>> Step(size_t step, std::vector<double> all_to_all,
                                                            double total = 0) {
    if (total == 0) total = 20 - 0.1 * static_cast<double>(step);
    for (int r = 0; r < kWorld; ++r) group_.trainer(r).set_steps(static_cast<int64_t>(step));
    losses_.push_back(group_.Step({RowsOfStep(golden_, step)}, kLearningRate).loss);
    std::vector<std::optional<jobs::PackingDecision>> decisions(kWorld);
    const std::vector<absl::Status> statuses = group_.OnEach([&](int r) -> absl::Status {
      StepReport report = {.expert_ops = 2};
      report.seconds = {
          .total = total, .experts = 1, .all_to_all = all_to_all[r] + 7, .backward_all_to_all = 7, .all_reduce = 0.5};
      ASSIGN_OR_RETURN(decisions[r], packers_[r]->AfterStep(report, test::Soon()));
      return absl::OkStatus();
    });
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_EQ(statuses[r].ok(), statuses[0].ok());
      EXPECT_EQ(decisions[r], decisions[0]) << r;
      EXPECT_EQ(packers_[r]->controller().decisions(), packers_[0]->controller().decisions());
      EXPECT_EQ(packers_[r]->groups().packing(), packers_[r]->controller().packing());
    }
    RETURN_IF_ERROR(statuses[0]);
    return decisions[0];
  }

  const jobs::PackingController& controller() const { return packers_[0]->controller(); }
  const std::vector<double>& losses() const { return losses_; }
  TrainingGroup& group() { return group_; }

 private:
  const TrainingGolden& golden_;
  TrainingGroup group_;
  std::vector<std::unique_ptr<ExpertPacker>> packers_;
  std::vector<double> losses_;
};

class ExpertPackerTest : public ::testing::Test {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden("qwen2-shared");
  const jobs::PackingController fresh_{{.world = kWorld, .first_step = 3, .every_steps = 2}};
  std::vector<jobs::PackingDecision> journal_;

  // Rank 0's.
  PackedGroup::Journal Journals() {
    return [this](int rank, const jobs::PackingDecision& decision) {
      if (rank == 0) journal_.push_back(decision);
      return absl::OkStatus();
    };
  }
};

// One rank alone waits: its time counts for all.
TEST_F(ExpertPackerTest, PacksUntilExpertsCoverAllToAlls) {
  PackedGroup group(golden_, fresh_, {.adjusts = true}, Journals());
  std::vector<std::string> reported;
  for (size_t step = 0; step < 8; ++step) {
    const double waited = step < 5 ? 8.5 : 7.5;
    const auto decision = group.Step(step, {0, 0, waited, 0});
    ASSERT_TRUE(decision.ok()) << decision.status();
    if (decision->has_value()) reported.push_back((*decision)->ToString());
  }
  EXPECT_EQ(reported,
            (std::vector<std::string>{
                "after step 3: packing 1 -> 2 of 4 ranks, all-to-all 531 ms, experts 500 ms a micro-op, a step "
                "19850 ms (19800 ms to 19900 ms), 500 ms of it waiting for sums (grows)",
                "after step 5: packing 2 -> 4 of 4 ranks, all-to-all 531 ms, experts 500 ms a micro-op, a step "
                "19600 ms, 500 ms of it waiting for sums (grows)",
                "after step 7: packing 4 -> 4 of 4 ranks, all-to-all 469 ms, experts 500 ms a micro-op, a step "
                "19400 ms, 500 ms of it waiting for sums (covered)"}));
  EXPECT_EQ(journal_, group.controller().decisions());
  EXPECT_EQ(group.group().model(3).weights().residents.size(), 6u);
  group.group().ExpectReplicasAlike();
  // As without packing.
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = kWorld});
  for (size_t step = 0; step < 8; ++step) {
    const double expected = unpacked.Step({RowsOfStep(golden_, step)}, kLearningRate).loss;
    EXPECT_NEAR(group.losses()[step], expected, 1e-10 * expected) << step;
  }
}

// All-to-alls are what takes long, but steps become longer when experts are on two ranks.
TEST_F(ExpertPackerTest, GoesBackWhereStepsBecomeLonger) {
  PackedGroup group(golden_, fresh_, {.adjusts = true}, Journals());
  for (size_t step = 0; step < 8; ++step) {
    ASSERT_TRUE(group.Step(step, {9, 9, 9, 9}, /*total=*/step < 3 ? 2 : 3).ok());
    EXPECT_EQ(group.controller().packing(), step == 2 || step == 3 ? 2 : 1) << step;
  }
  ASSERT_EQ(journal_.size(), 2u);
  EXPECT_EQ(journal_[1].reason, jobs::PackingReason::kUndone);
  EXPECT_EQ(journal_[1].why, "a step took 2000 ms with packing 1");
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(group.group().model(r).weights().residents, PackedResidents(6, 4, 1, r));
  group.group().ExpectReplicasAlike();
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = kWorld});
  for (size_t step = 0; step < 8; ++step) {
    const double expected = unpacked.Step({RowsOfStep(golden_, step)}, kLearningRate).loss;
    EXPECT_NEAR(group.losses()[step], expected, 1e-10 * expected) << step;
  }
}

TEST_F(ExpertPackerTest, OtherModesDoNotAdjust) {
  PackedGroup group(golden_, fresh_, {});
  for (size_t step = 0; step < 4; ++step) EXPECT_EQ(*group.Step(step, {9, 9, 9, 9}), std::nullopt);
  EXPECT_EQ(group.controller().packing(), 1);
}

TEST_F(ExpertPackerTest, StaysWhereARankHasNoRoom) {
  PackedGroup group(golden_, fresh_, {.adjusts = true, .available_bytes = [] { return 4096; }}, Journals());
  for (size_t step = 0; step < 6; ++step) {
    const auto decision = group.Step(step, {9, 9, 9, 9});
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->has_value(), step == 2);
  }
  ASSERT_EQ(journal_.size(), 1u);
  EXPECT_EQ(journal_[0].to, 1);
  EXPECT_EQ(journal_[0].reason, jobs::PackingReason::kRefused);
  EXPECT_THAT(journal_[0].why, HasSubstr("rank 2: 3 more experts a layer take "));
}

// It continues from step 4, with its packing and the decisions after that step.
TEST_F(ExpertPackerTest, FollowsItsJournal) {
  PackedGroup first(golden_, fresh_, {.adjusts = true}, Journals());
  for (size_t step = 0; step < 8; ++step) ASSERT_TRUE(first.Step(step, {9, 9, 9, 9}).ok());
  const auto lines = jobs::DecodePackingDecisions(jobs::EncodePackingDecisions(journal_));
  ASSERT_TRUE(lines.ok());
  jobs::PackingController again = fresh_;
  ASSERT_TRUE(again.Replay(*lines, 4).ok());
  EXPECT_EQ(again.packing(), 2);
  journal_.clear();
  PackedGroup second(golden_, again, {.adjusts = true}, Journals());
  EXPECT_EQ(second.group().groups(0).packing(), 2);
  for (size_t step = 4; step < 8; ++step) ASSERT_TRUE(second.Step(step, {0, 0, 0, 0}).ok());
  EXPECT_EQ(second.controller().packing(), 4);
  EXPECT_EQ(second.controller().decisions(), first.controller().decisions());
  EXPECT_THAT(journal_, testing::IsEmpty()) << "the journal has them";
}

// There is no room for the packing of an earlier attempt: another attempt may find some.
TEST_F(ExpertPackerTest, WhatIsForeseenIsNotRefusedButLost) {
  PackedGroup first(golden_, fresh_, {.adjusts = true}, Journals());
  for (size_t step = 0; step < 4; ++step) ASSERT_TRUE(first.Step(step, {9, 9, 9, 9}).ok());
  jobs::PackingController again = fresh_;
  ASSERT_TRUE(again.Replay(journal_, 2).ok());
  PackedGroup second(golden_, again, {.adjusts = true, .available_bytes = [] { return 4096; }}, Journals());
  const absl::Status status = second.Step(2, {9, 9, 9, 9}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << "it is not the disk";
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr("no room for what was decided before, \"after step 3: packing 1 -> 2 of 4 ranks"),
                     HasSubstr("rank 2: 3 more experts a layer take ")));
  EXPECT_EQ(OutcomeOf(status), jobs::TrainOutcome::kLost);
  EXPECT_EQ(journal_.size(), 1u);
  for (int r = 0; r < kWorld; ++r) EXPECT_TRUE(second.group().comm(r)->status().ok()) << "all ranks know";
}

TEST_F(ExpertPackerTest, AJournalThatFailsLeavesAllAsItWas) {
  PackedGroup group(golden_, fresh_, {.adjusts = true},
                    [](int, const jobs::PackingDecision&) { return absl::UnavailableError("no journal"); });
  for (size_t step = 0; step < 2; ++step) ASSERT_TRUE(group.Step(step, {9, 9, 9, 9}).ok());
  EXPECT_EQ(group.Step(2, {9, 9, 9, 9}).status().message(), "no journal");
  EXPECT_EQ(group.controller().packing(), 1);
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_EQ(group.group().model(r).weights().residents, PackedResidents(6, 4, 1, r));
    EXPECT_TRUE(group.group().comm(r)->status().ok()) << "all ranks know";
  }
}

// Without times of the test, the trainer's times count.
TEST_F(ExpertPackerTest, MeasuresStepsOfTheTrainer) {
  TrainingGroup group(golden_.dir, {.world = 2});
  std::vector<jobs::PackingDecision> decisions(2);
  std::vector<StepReport> reports(2);
  std::vector<std::unique_ptr<ExpertPacker>> packers(2);
  const TrainRows rows = RowsOfStep(golden_, 0);
  for (const absl::Status& status : group.OnEach([&](int r) -> absl::Status {
         ASSIGN_OR_RETURN(packers[r], ExpertPacker::Create(&group.trainer(r), &group.parameters(r), group.comm(r),
                                                           jobs::PackingController({.world = 2, .first_step = 1}),
                                                           {.adjusts = true}, test::Soon()));
         ASSIGN_OR_RETURN(reports[r], group.trainer(r).Step({rows}, kLearningRate, test::Soon()));
         std::optional<jobs::PackingDecision> decision;
         ASSIGN_OR_RETURN(decision, packers[r]->AfterStep(reports[r], test::Soon()));
         decisions[r] = decision.value();
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(decisions[0], decisions[1]);
  const auto forward = [](const RankStepSeconds& s) { return s.all_to_all - s.backward_all_to_all; };
  const RankStepSeconds &one = reports[0].seconds, &two = reports[1].seconds;
  EXPECT_NEAR(static_cast<double>(decisions[0].times.experts_ns), 1e9 * (one.experts + two.experts), 2);
  EXPECT_NEAR(static_cast<double>(decisions[0].times.all_to_all_ns), 1e9 * (forward(one) + forward(two)), 2);
  EXPECT_EQ(decisions[0].times.micro_ops, 2 * group.model(0).config().num_moe_layers());
  EXPECT_NEAR(static_cast<double>(decisions[0].times.step_ns), 1e9 * (one.total + two.total), 2);
  EXPECT_NEAR(static_cast<double>(decisions[0].times.sums_ns), 1e9 * (one.all_reduce + two.all_reduce), 2);
  EXPECT_EQ(decisions[0].times.steps, 2);
}

// With several chunks ranks wait less, as an all-to-all runs beside each chunk's products.
TEST(PackingTimesTest, AnAllToAllTakesWhatItIsUnderWay) {
  StepReport report = {.expert_ops = 8, .chunks = 1};
  report.seconds = {.total = 9, .experts = 2, .all_to_all = 4, .backward_all_to_all = 1, .all_reduce = 0.5};
  EXPECT_EQ(TimesOf(report).all_to_all_ns, 3'000'000'000);
  report.chunks = 2;
  EXPECT_EQ(TimesOf(report).all_to_all_ns, 5'000'000'000);
  EXPECT_EQ(TimesOf(report).experts_ns, 2'000'000'000);
}

}  // namespace
}  // namespace switchyard::train
