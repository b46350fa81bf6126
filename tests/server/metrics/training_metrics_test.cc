#include "server/metrics/training_metrics.h"

#include <cmath>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

// Returns values by "name label=value".
std::map<std::string, double> Values(const prometheus::Registry& registry) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    EXPECT_FALSE(family.help.empty()) << family.name;
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const auto& label : metric.label) name += " " + label.name + "=" + label.value;
      values[name] = family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
  }
  return values;
}

TEST(TrainingMetricsTest, WhatIsCountedIsThatOfTheTable) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCounts counts;
  counts.jobs[static_cast<int>(jobs::JobState::kPending)] = 3;
  counts.workers = 2;
  counts.busy_workers = 1;
  counts.tokens = 100;
  counts.not_finite = 2;
  counts.dropped_rows = 11;
  counts.seconds = {.total = 5,
                    .forward = 1,
                    .backward = 2,
                    .experts = 1.5,
                    .all_to_all = .25,
                    .all_reduce = .5,
                    .optimizer = .75,
                    .data = .125};
  metrics.Update(counts);
  const std::map<std::string, double> values = Values(*registry);
  EXPECT_EQ(values.at("switchyard_train_jobs state=pending"), 3);
  EXPECT_EQ(values.at("switchyard_train_jobs state=running"), 0);
  EXPECT_EQ(values.at("switchyard_train_workers_busy"), 1);
  EXPECT_EQ(values.at("switchyard_train_journal_ok"), 1);
  counts.journal_ok = false;
  metrics.Update(counts);
  EXPECT_EQ(Values(*registry).at("switchyard_train_journal_ok"), 0);
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 100);
  EXPECT_EQ(values.at("switchyard_train_not_finite_total"), 2);
  EXPECT_EQ(values.at("switchyard_train_dropped_rows_total"), 11);
  EXPECT_EQ(values.at("switchyard_train_step_seconds_total"), 5);
  const std::map<std::string, double> phases = {{"forward", 1},      {"backward", 2},    {"expert", 1.5},
                                                {"all_to_all", .25}, {"all_reduce", .5}, {"optimizer", .75},
                                                {"data", .125}};
  for (const auto& [phase, seconds] : phases) {
    EXPECT_EQ(values.at("switchyard_train_phase_seconds_total phase=" + phase), seconds) << phase;
  }
  EXPECT_FALSE(values.contains("switchyard_train_loss slot=0")) << "no job runs";
}

TEST(TrainingMetricsTest, ASkippedStepHasMeasuredNothing) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCounts counts;
  counts.slots[0].job = "job-a";
  counts.slots[0].progress.step = 3;
  counts.slots[0].progress.skipped = true;
  metrics.Update(counts);
  const std::map<std::string, double> values = Values(*registry);
  for (const std::string name : {"loss", "balance_loss", "z_loss", "gradient_norm"}) {
    EXPECT_TRUE(std::isnan(values.at("switchyard_train_" + name + " job_id=job-a slot=0"))) << name;
  }
  EXPECT_EQ(values.at("switchyard_train_step job_id=job-a slot=0"), 3);
}

// Of a job with preferences there are no pairs in such a step, and its gauges stay.
TEST(TrainingMetricsTest, ASkippedStepKeepsTheGaugesOfPreferences) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCounts counts;
  const std::string margin = "switchyard_train_preference_margin job_id=job-a slot=0",
                    accuracy = "switchyard_train_preference_accuracy job_id=job-a slot=0";
  TrainingCounts::Slot& slot = counts.slots[0];
  slot.job = "job-a";
  slot.progress.preferences = {.margin = 0.5, .accuracy = 0.75, .pairs = 4};
  metrics.Update(counts);
  EXPECT_EQ(Values(*registry).at(margin), 0.5);
  slot.progress.preferences.reset();
  slot.progress.skipped = true;
  metrics.Update(counts);
  EXPECT_TRUE(std::isnan(Values(*registry).at(margin)));
  EXPECT_TRUE(std::isnan(Values(*registry).at(accuracy)));
  slot.progress.preferences = {.margin = 0.25, .accuracy = 1, .pairs = 4};
  slot.progress.skipped = false;
  metrics.Update(counts);
  EXPECT_EQ(Values(*registry).at(margin), 0.25);
  EXPECT_EQ(Values(*registry).at(accuracy), 1);
  slot.job = "job-b";  // without preferences
  slot.progress.preferences.reset();
  slot.progress.skipped = true;
  metrics.Update(counts);
  EXPECT_FALSE(Values(*registry).contains(margin));
}

TEST(TrainingMetricsTest, EvaluationSetsHaveGaugesWhileTheirJobRuns) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCounts counts;
  metrics.Update(counts);
  const auto sets = [&] {
    std::map<std::string, double> found;
    for (const auto& [name, value] : Values(*registry)) {
      if (name.starts_with("switchyard_train_evaluation_set_loss ")) found[name.substr(name.find(' ') + 1)] = value;
    }
    return found;
  };
  using Found = std::map<std::string, double>;
  TrainingCounts::Slot& slot = counts.slots[0];
  slot.job = "job-a";
  slot.evaluated = true;
  slot.evaluation.sets = {{"chat", 2, 3}, {"code", 1.5, 3}};
  metrics.Update(counts);
  EXPECT_EQ(sets(), (Found{{"job_id=job-a set=chat slot=0", 2}, {"job_id=job-a set=code slot=0", 1.5}}));
  slot.evaluation.sets[0].loss = 1;
  metrics.Update(counts);
  EXPECT_EQ(sets(), (Found{{"job_id=job-a set=chat slot=0", 1}, {"job_id=job-a set=code slot=0", 1.5}}));
  slot.job = "job-b";
  slot.evaluation.sets = {{"code", 3, 3}};
  metrics.Update(counts);
  EXPECT_EQ(sets(), (Found{{"job_id=job-b set=code slot=0", 3}}));
  // No more than so many, and names are cut.
  slot.evaluation.sets.assign(3, {std::string(500, 'x'), 4, 3});
  for (int i = 0; i < 100; ++i) slot.evaluation.sets.push_back({std::to_string(i), 1, 1});
  metrics.Update(counts);
  EXPECT_EQ(sets().size(), TrainingMetrics::kMaxSets - 2) << "names that are the same when they are cut are one";
  EXPECT_TRUE(sets().contains("job_id=job-b set=" + std::string(TrainingMetrics::kMaxSetBytes, 'x') + " slot=0"));
  counts.slots.clear();
  metrics.Update(counts);
  EXPECT_EQ(sets(), Found());
}

TEST(TrainingMetricsTest, AJobHasGaugesWhileItRuns) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCounts counts;
  metrics.Update(counts);
  const size_t idle = Values(*registry).size();
  counts.tokens = 150;
  TrainingCounts::Slot& slot = counts.slots[1];
  slot.job = "job-a";
  slot.progress.step = 7;
  slot.progress.loss = 2.5;
  slot.progress.balance_loss = 1.25;
  slot.progress.z_loss = .5;
  slot.progress.learning_rate = .001;
  slot.progress.gradient_norm = 3;
  slot.progress.tokens_per_second = 640;
  slot.progress.dead_experts = 4;
  slot.progress.padding = .125;
  slot.progress.packing = 2;
  slot.progress.chunks = 4;
  slot.checkpoint_step = 6;
  slot.checkpoint_age_seconds = 9;
  metrics.Update(counts);
  std::map<std::string, double> values = Values(*registry);
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 150);
  const std::map<std::string, double> gauges = {{"loss", 2.5},
                                                {"balance_loss", 1.25},
                                                {"z_loss", .5},
                                                {"learning_rate", .001},
                                                {"gradient_norm", 3},
                                                {"tokens_per_second", 640},
                                                {"step", 7},
                                                {"dead_experts", 4},
                                                {"padding_ratio", .125},
                                                {"packing", 2},
                                                {"chunks", 4},
                                                {"checkpoint_step", 6},
                                                {"checkpoint_age_seconds", 9}};
  for (const auto& [name, value] : gauges) {
    EXPECT_EQ(values.at("switchyard_train_" + name + " job_id=job-a slot=1"), value) << name;
  }
  EXPECT_FALSE(values.contains("switchyard_train_evaluation_loss job_id=job-a slot=1")) << "nothing was evaluated";
  slot.evaluated = true;
  slot.evaluation.loss = 4;
  metrics.Update(counts);
  EXPECT_EQ(Values(*registry).at("switchyard_train_evaluation_loss job_id=job-a slot=1"), 4);
  const size_t running = Values(*registry).size();
  slot.job = "job-b";  // the next one, in the same slot
  metrics.Update(counts);
  EXPECT_EQ(Values(*registry).at("switchyard_train_step job_id=job-b slot=1"), 7);
  EXPECT_EQ(Values(*registry).size(), running) << "the job before leaves no values behind";

  counts.slots.clear();
  counts.tokens = 140;  // counters do not fall
  metrics.Update(counts);
  values = Values(*registry);
  EXPECT_EQ(values.size(), idle) << "a job that has ended leaves no values behind";
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 150);
}

}  // namespace
}  // namespace switchyard::server
