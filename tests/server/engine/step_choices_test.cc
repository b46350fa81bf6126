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
    workers_.num_experts = 16;
    workers_.experts_per_token = 2;
    workers_.row_bytes = 1000;
    workers_.device = "cpu";
    workers_.links = {.start_seconds = 1e-5, .bytes_per_second = kFastLinks, .r_squared = 1};
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
      choices_->Choose(expert_, &plan, now_);
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
      }
      choices_->StepDone(result, now_);
    }
    return went;
  }

  ServerConfig config_;
  ServerMetrics metrics_{"tiny"};
  fleet::WorkerInfo workers_;
  std::unique_ptr<StepChoices> choices_;
  // Where it is measured a layer of 256 rows of each rank takes 64 ms of products, and messages as long on these links.
  static constexpr double kFastLinks = 8e9, kEvenLinks = 6.5e6;
  placement::ExpertCost expert_ = {.weights_seconds = 1e-4, .row_seconds = 1.25e-4};
  double decided_ = 1;
  bool uneven_ = false;
  absl::Duration hidden_ = absl::ZeroDuration();
  int64_t step_ = 0, num_decided_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

// Of what is expected to hide messages, 6 and 8 are the best and alike: these are tried.
TEST_F(StepChoicesTest, CutsRowsWhereThatIsFaster) {
  workers_.links.bytes_per_second = kEvenLinks;
  Begin();
  std::map<int, int> went = Steps(1000, {{1, 1}, {2, 0.1}, {6, 0.7}, {8, 0.75}});
  EXPECT_GT(went.at(6), 900);
  EXPECT_EQ(went.at(1) + went.at(6) + went.at(8), 1000) << "2 is expected to be slower";
  EXPECT_GT(choices_->micro_batches().gained_seconds(), 200);
  choices_->ReportMetrics();
  EXPECT_EQ(metrics_.cut_steps->Value(), choices_->micro_batches().other_steps());
}

// One rank has all rows.
TEST_F(StepChoicesTest, UnevenStepsAreTriedByThemselves) {
  workers_.experts_in_place = true;
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
  workers_.links.bytes_per_second = kEvenLinks;
  decided_ = 0.8;
  Begin();
  EXPECT_EQ(Steps(200, {{6, 0.5}}).at(1), 200);
  EXPECT_EQ(choices_->micro_batches().steps(), 0);
  decided_ = 1.2;  // then rows go home, and are cut
  Begin();
  EXPECT_GT(Steps(200, {{6, 0.5}})[6], 150);
}

// The ranks of a step that do not wait for each other may begin it before the last has ended the one before.
TEST_F(StepChoicesTest, AStepTakesAsLongAsItsSlowestRank) {
  workers_.experts_in_place = true;
  decided_ = 1.2;
  Begin();
  hidden_ = absl::Seconds(0.9);  // of those that decide, as the server sees it
  Steps(100, {});
  EXPECT_LT(num_decided_, 10);
}

// auto without slots for replicas: only where experts are in place is there another way.
TEST_F(StepChoicesTest, TriesRowsThatStayWhereExpertsAreInPlace) {
  decided_ = 0.8;
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
  workers_.links.bytes_per_second = kEvenLinks;
  Begin();
  const std::map<int, int> went = Steps(1000, {{1, 1}, {6, 1.1}, {8, 1.2}});
  EXPECT_GT(went.at(1), 960);
  double lost = 0;
  for (const auto& [ways, steps] : went) lost += steps * (ways == 1 ? 0 : ways == 6 ? 0.1 : 0.2);
  EXPECT_LT(lost, 5);  // of 1000 seconds
}

// Prompts and decodes are steps of different kinds.
TEST_F(StepChoicesTest, DecodesAreTriedByThemselves) {
  workers_.links.bytes_per_second = kEvenLinks;
  Begin();
  EXPECT_GT(Steps(500, {{1, 1}, {6, 0.8}, {8, 0.7}})[8], 450);
  EXPECT_GT(Steps(500, {{1, 1}, {6, 1.2}, {8, 1.3}}, 256, 1)[1], 450);
  EXPECT_GT(Steps(100, {{1, 1}, {6, 0.8}, {8, 0.7}})[8], 95);
}

TEST_F(StepChoicesTest, DoesNotTryWhereNothingIsToBeHidden) {
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200);
  EXPECT_EQ(choices_->micro_batches().steps(), 0);
  EXPECT_EQ(choices_->Copy().note, "");
  workers_.links.bytes_per_second = kEvenLinks;
  Begin();
  EXPECT_EQ(Steps(200, {}, 20).at(1), 200) << "few rows";
  expert_ = {};
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "experts are not measured yet";
  EXPECT_EQ(choices_->Copy().note, "the experts' times are not measured yet");
  expert_ = {.weights_seconds = 0.1, .row_seconds = 1.25e-4};
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "experts take as long for fewer rows";
  expert_ = {.weights_seconds = 1e-4, .row_seconds = 1.25e-4};
  Begin(1);
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "one worker";
  workers_.expert_budget = MemoryShare();
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "a part of the experts in memory";
  workers_.expert_budget.reset();
  workers_.links = {};
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "links that are not known";
  EXPECT_EQ(choices_->Copy().note, "the group's links could not be measured");
  workers_.device = "cuda:0";
  Begin();
  EXPECT_EQ(Steps(200, {}).at(1), 200) << "a device";
}

// What is expected is measured time of whole rows and what the layers are expected to save.
TEST_F(StepChoicesTest, SaysWhatWasExpectedAndMeasured) {
  workers_.links.bytes_per_second = kEvenLinks;
  Begin();
  Steps(100, {{1, 1}, {6, 0.7}, {8, 0.75}});
  const ChoicesCopy copy = choices_->Copy();
  ASSERT_EQ(copy.cuts.size(), 1u);
  const batching::StepTrial::Seen& seen = copy.cuts[0];
  EXPECT_EQ(copy.micro_batches[static_cast<size_t>(seen.best)], 6);
  EXPECT_TRUE(seen.prompts);
  EXPECT_LE(seen.least, 512);
  EXPECT_GE(seen.most, 512);
  const std::vector<double> expected = ExpectedSeconds(copy, seen);
  ASSERT_EQ(expected.size(), copy.micro_batches.size());
  const double whole = seen.ways[0].row_seconds * static_cast<double>(seen.most);
  EXPECT_DOUBLE_EQ(expected[0], whole);
  EXPECT_LT(expected[4], whole - 4 * 0.045) << "four layers, each of which hides nearly what messages or products take";
  EXPECT_GT(expected[4], whole - 4 * 0.08);
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
  workers_.links.bytes_per_second = kEvenLinks;
  decided_ = 0.9;
  Begin();
  EXPECT_TRUE(choices_->tries_placement());
  const std::map<int, double> seconds = {{1, 1}, {6, 0.7}, {8, 0.75}};
  EXPECT_EQ(Steps(2 * batching::StepTrial::kSamples, seconds).at(1), 10);
  EXPECT_EQ(choices_->placement().other_steps(), 5);
  EXPECT_GT(Steps(490, seconds).at(6), 430);
  EXPECT_LT(choices_->placement().steps(), 60) << "tried with whole rows alone";
  EXPECT_GT(num_decided_, 480) << "cut steps decide, too, as that was faster";
}

}  // namespace
}  // namespace switchyard::server
