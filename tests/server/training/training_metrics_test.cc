#include "server/training/training_metrics.h"

#include <map>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

// Values by "name label=value".
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

TEST(TrainingMetricsTest, AreThoseOfTheTable) {
  const auto registry = std::make_shared<prometheus::Registry>();
  TrainingMetrics metrics(registry);
  TrainingCensus census;
  census.jobs[static_cast<int>(JobState::kPending)] = 3;
  census.workers = 2;
  census.busy_workers = 1;
  census.tokens = 100;
  census.not_finite = 2;
  census.seconds = {.total = 5, .forward = 1, .backward = 2, .experts = 1.5, .all_to_all = .25, .all_reduce = .5};
  metrics.Update(census);
  std::map<std::string, double> values = Values(*registry);
  const size_t idle = values.size();
  EXPECT_EQ(values.at("switchyard_train_jobs state=pending"), 3);
  EXPECT_EQ(values.at("switchyard_train_jobs state=running"), 0);
  EXPECT_EQ(values.at("switchyard_train_workers_busy"), 1);
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 100);
  EXPECT_EQ(values.at("switchyard_train_not_finite_total"), 2);
  EXPECT_EQ(values.at("switchyard_train_phase_seconds_total phase=all_reduce"), .5);
  EXPECT_EQ(values.at("switchyard_train_phase_seconds_total phase=expert"), 1.5);
  EXPECT_FALSE(values.contains("switchyard_train_loss slot=0")) << "no job runs";

  census.tokens = 150;
  TrainingCensus::Slot& slot = census.slots[1];
  slot.progress.loss = 2.5;
  slot.progress.step = 7;
  slot.progress.packing = 2;
  slot.checkpoint_age_seconds = 9;
  metrics.Update(census);
  values = Values(*registry);
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 150);
  EXPECT_EQ(values.at("switchyard_train_loss slot=1"), 2.5);
  EXPECT_EQ(values.at("switchyard_train_step slot=1"), 7);
  EXPECT_EQ(values.at("switchyard_train_packing slot=1"), 2);
  EXPECT_EQ(values.at("switchyard_train_checkpoint_age_seconds slot=1"), 9);
  EXPECT_FALSE(values.contains("switchyard_train_evaluation_loss slot=1")) << "nothing was evaluated";
  slot.evaluated = true;
  slot.evaluation.loss = 4;
  metrics.Update(census);
  EXPECT_EQ(Values(*registry).at("switchyard_train_evaluation_loss slot=1"), 4);

  census.slots.clear();
  census.tokens = 140;  // nothing falls
  metrics.Update(census);
  values = Values(*registry);
  EXPECT_EQ(values.size(), idle) << "a job that has ended leaves no values behind";
  EXPECT_EQ(values.at("switchyard_train_tokens_total"), 150);
}

}  // namespace
}  // namespace switchyard
