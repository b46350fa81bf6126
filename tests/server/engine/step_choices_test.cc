// What is tried in steps, and with which steps it is not.
#include "server/engine/step_choices.h"

#include <map>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

class StepChoicesTest : public testing::Test {
 protected:
  StepChoicesTest() {
    workers_.num_moe_layers = 4;
    workers_.device = "cpu";
  }
  void Begin(int world = 2) {
    choices_ = std::make_unique<StepChoices>(&config_, &metrics_);
    choices_->GroupUp(world, workers_);
  }
  // Runs so many steps, which take what their number of micro-batches says; returns how many had which.
  std::map<int, int> Steps(int count, std::map<int, double> seconds, int32_t rows = 256, int32_t query = 128) {
    std::map<int, int> went;
    for (int i = 0; i < count; ++i) {
      batching::StepPlan plan;
      plan.step = ++step_;
      plan.rank_rows = {uneven_ ? 2 * rows : rows, uneven_ ? 0 : rows};
      plan.ranks.resize(2);
      plan.ranks[0].items.emplace_back().num_query = query;
      choices_->Choose(&plan, now_);
      ++went[plan.micro_batches];
      num_decided_ += plan.decides ? 1 : 0;
      const double took =
          (seconds.contains(plan.micro_batches) ? seconds[plan.micro_batches] : 1) * (plan.decides ? decided_ : 1);
      now_ += absl::Seconds(took) - (plan.decides ? hidden_ : absl::ZeroDuration());
      batching::StepResult result;
      result.step = plan.step;
      result.ranks.resize(2);
      for (batching::RankResult& rank : result.ranks) {
        rank.timings.total_seconds = took;
        rank.timings.exchange_seconds = workers_.experts_in_place && plan.decides ? 0 : exchange_share_ * took;
      }
      choices_->StepDone(result, now_);
    }
    return went;
  }

  ServerConfig config_;
  ServerMetrics metrics_{"tiny"};
  fleet::WorkerInfo workers_;
  std::unique_ptr<StepChoices> choices_;
  double exchange_share_ = 0.4, decided_ = 1;
  bool uneven_ = false;
  absl::Duration hidden_ = absl::ZeroDuration();
  int64_t step_ = 0, num_decided_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(StepChoicesTest, CutsRowsWhereThatIsFaster) {
  Begin();
  const std::map<int, int> went = Steps(1000, {{1, 1}, {2, 0.8}, {3, 0.7}, {4, 0.75}});
  EXPECT_GT(went.at(3), 900);
  EXPECT_GT(choices_->micro_batches().gained_seconds(), 200);
  choices_->ReportMetrics();
  EXPECT_EQ(metrics_.cut_steps->Value(), choices_->micro_batches().other_steps());
}

// One rank has all rows.
TEST_F(StepChoicesTest, UnevenStepsAreTriedByThemselves) {
  workers_.experts_in_place = true;
  exchange_share_ = 0;
  Begin();
  decided_ = 0.8;
  Steps(50, {});
  num_decided_ = 0;
  decided_ = 1.4;
  uneven_ = true;
  Steps(100, {});
  EXPECT_LE(num_decided_, batching::StepTrial::kSamples);
  uneven_ = false;
  decided_ = 0.8;
  Steps(100, {});
  EXPECT_GT(num_decided_, 95);
}

// With replicas the sum of rows is what counts.
TEST_F(StepChoicesTest, UnevenStepsAreLikeOthersWhereRowsTravel) {
  config_.placement.spare_slots = 1;
  exchange_share_ = 0;
  Begin();
  decided_ = 0.8;
  Steps(50, {});
  num_decided_ = 0;
  uneven_ = true;
  Steps(20, {});
  EXPECT_EQ(num_decided_, 20);
}

// Where rows stay nothing travels that cutting could hide.
TEST_F(StepChoicesTest, RowsThatStayAreNotCut) {
  workers_.experts_in_place = true;
  decided_ = 0.8;
  Begin();
  EXPECT_EQ(Steps(200, {{2, 0.5}}).at(1), 200);
  EXPECT_EQ(choices_->micro_batches().steps(), 0);
  decided_ = 1.2;  // then rows go home, and are cut
  Begin();
  EXPECT_GT(Steps(200, {{2, 0.5}})[2], 150);
}

// The ranks of a step that do not wait for each other may begin it before the last has ended the one before.
TEST_F(StepChoicesTest, AStepTakesAsLongAsItsSlowestRank) {
  workers_.experts_in_place = true;
  exchange_share_ = 0;
  decided_ = 1.2;
  Begin();
  hidden_ = absl::Seconds(0.9);  // of those that decide, as the server sees it
  Steps(100, {});
  EXPECT_LT(num_decided_, 10);
}

// auto without slots for replicas: only where experts are in place is there another way.
TEST_F(StepChoicesTest, TriesRowsThatStayWhereExpertsAreInPlace) {
  decided_ = 0.8;
  exchange_share_ = 0;
  Begin();
  EXPECT_FALSE(choices_->tries_placement());
  Steps(100, {});
  EXPECT_EQ(choices_->placement().steps(), 0);
  workers_.experts_in_place = true;
  num_decided_ = 0;
  Begin();
  EXPECT_TRUE(choices_->tries_placement());
  Steps(100, {});
  EXPECT_GT(num_decided_, 90);
  config_.placement.mode = placement::PlacementMode::kStatic;
  Begin();
  EXPECT_FALSE(choices_->tries_placement());
}

TEST_F(StepChoicesTest, LeavesRowsWholeWhereThatIsFaster) {
  Begin();
  const std::map<int, int> went = Steps(1000, {{1, 1}, {2, 1.1}, {3, 1.15}, {4, 1.2}});
  EXPECT_GT(went.at(1), 960);
  double lost = 0;
  for (const auto& [ways, steps] : went) lost += steps * (ways == 1 ? 0 : ways == 2 ? 0.1 : ways == 3 ? 0.15 : 0.2);
  EXPECT_LT(lost, 5);  // of 1000 seconds
}

TEST_F(StepChoicesTest, DoesNotTryWhereNothingIsToBeHidden) {
  exchange_share_ = 0.02;
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200);
  EXPECT_EQ(choices_->micro_batches().steps(), 0);
  exchange_share_ = 0.4;
  Begin();
  EXPECT_EQ(Steps(200, {}, 256, 1).at(1), 200) << "decodes";
  EXPECT_EQ(Steps(200, {}, 20).at(1), 200) << "few rows";
  Begin(1);
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "one worker";
  workers_.expert_budget = MemoryShare();
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "a part of the experts in memory";
  workers_.expert_budget.reset();
  workers_.device = "cuda:0";
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "a device";
}

TEST_F(StepChoicesTest, AFixedNumberIsOfPrompts) {
  config_.micro_batches = 4;
  Begin();
  EXPECT_EQ(Steps(50, {}).at(4), 50);
  EXPECT_EQ(Steps(50, {}, 256, 1).at(1), 50);
  EXPECT_EQ(choices_->micro_batches().steps(), 0);
  config_.micro_batches = 1;
  Begin();
  EXPECT_EQ(Steps(50, {}).at(1), 50);
}

// Both choices of a step, one after the other.
TEST_F(StepChoicesTest, PlacementIsTriedFirst) {
  config_.placement.spare_slots = 1;
  decided_ = 0.9;
  Begin();
  EXPECT_TRUE(choices_->tries_placement());
  const std::map<int, double> seconds = {{1, 1}, {2, 0.8}, {3, 0.7}, {4, 0.75}};
  EXPECT_EQ(Steps(2 * batching::StepTrial::kSamples, seconds).at(1), 10);
  EXPECT_EQ(choices_->placement().other_steps(), 5);
  EXPECT_GT(Steps(490, seconds).at(3), 430);
  EXPECT_LT(choices_->placement().steps(), 60) << "tried with whole rows alone";
  EXPECT_GT(num_decided_, 480) << "cut steps decide, too, as that was faster";
}

}  // namespace
}  // namespace switchyard::server
