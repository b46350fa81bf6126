// The metric families of training jobs, as Prometheus sees them.  Every new, removed or changed metric changes its line
// here.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

const Families& TrainingFamilies() {
  static const Families families = {
      {"switchyard_train_jobs", {"gauge", "state", ""}},
      {"switchyard_train_workers", {"gauge", "", ""}},
      {"switchyard_train_workers_busy", {"gauge", "", ""}},
      {"switchyard_train_journal_ok", {"gauge", "", ""}},
      {"switchyard_train_forks_total", {"counter", "", ""}},
      {"switchyard_train_attempts_total", {"counter", "", ""}},
      {"switchyard_train_attempts_lost_total", {"counter", "", ""}},
      {"switchyard_train_not_finite_total", {"counter", "", ""}},
      {"switchyard_train_blocked_total", {"counter", "", ""}},
      {"switchyard_train_steps_total", {"counter", "", ""}},
      {"switchyard_train_tokens_total", {"counter", "", ""}},
      {"switchyard_train_dropped_rows_total", {"counter", "", ""}},
      {"switchyard_train_checkpoints_total", {"counter", "", ""}},
      {"switchyard_train_step_seconds_total", {"counter", "", ""}},
      {"switchyard_train_phase_seconds_total", {"counter", "phase", ""}},
      {"switchyard_train_slices_total", {"counter", "engine,model_name", ""}},
      {"switchyard_train_slice_seconds_total", {"counter", "engine,model_name", ""}},
  };
  return families;
}

// Of a running job.
const Families& SlotFamilies() {
  static const Families families = {
      {"switchyard_train_loss", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_balance_loss", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_z_loss", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_learning_rate", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_gradient_norm", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_tokens_per_second", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_step", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_dead_experts", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_padding_ratio", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_packing", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_chunks", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_checkpoint_step", {"gauge", "job_id,slot", ""}},
      {"switchyard_train_checkpoint_age_seconds", {"gauge", "job_id,slot", ""}},
  };
  return families;
}

Families OfTraining(const std::string& page) {
  Families families = Parse(page);
  std::erase_if(families, [](const auto& entry) { return !absl::StartsWith(entry.first, "switchyard_train_"); });
  return families;
}

TEST(TrainingMetricsTest, ThePageIsThatOfTheTables) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  const std::string address = training.server()->metrics_address();
  EXPECT_THAT(OfTraining(Scrape(address)), testing::ContainerEq(TrainingFamilies())) << "no job runs";

  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.set_steps(1'000'000);
  spec.mutable_checkpoints()->set_every_steps(1'000'000);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  ASSERT_EQ(training.WaitUntilIn(submitted->id(), v1::JOB_STATE_RUNNING).state(), v1::JOB_STATE_RUNNING);
  Families with_slot = TrainingFamilies();
  with_slot.insert(SlotFamilies().begin(), SlotFamilies().end());
  const char* const running = "switchyard_train_jobs{state=\"running\"}";
  const char* const busy = "switchyard_train_workers_busy";
  const char* const steps = "switchyard_train_steps_total";
  const char* const backward = "switchyard_train_phase_seconds_total{phase=\"backward\"}";
  // A page that is made while its values are set has some of them only.
  std::string page;
  WaitUntil(
      [&] {
        page = Scrape(address);
        return OfTraining(page) == with_slot && Value(page, running) == 1 && Value(page, busy) == 2 &&
               Value(page, steps) > 0 && Value(page, backward) > 0;
      },
      kStartLimit);
  EXPECT_THAT(OfTraining(page), testing::ContainerEq(with_slot));
  EXPECT_EQ(Value(page, running), 1);
  EXPECT_EQ(Value(page, busy), 2);
  EXPECT_GT(Value(page, steps), 0);
  EXPECT_GT(Value(page, backward), 0);
}

}  // namespace
}  // namespace switchyard
