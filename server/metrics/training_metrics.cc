#include "server/metrics/training_metrics.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::server {
namespace {

using Counts = TrainingCounts;
struct CounterRow {
  const char* name;
  const char* help;
  int64_t Counts::*count;
};
const CounterRow kCounters[] = {
    {"switchyard_train_forks_total", "Jobs that were made of another job's checkpoint.", &Counts::forks},
    {"switchyard_train_attempts_total", "Starts of jobs' trainers.", &Counts::attempts},
    {"switchyard_train_attempts_lost_total", "Attempts that ended because a worker or their group was lost.",
     &Counts::losses},
    {"switchyard_train_not_finite_total", "Jobs that failed as a loss or a gradient was not finite.",
     &Counts::not_finite},
    {"switchyard_train_blocked_total", "Jobs that were paused because data changed or the disk stayed full.",
     &Counts::blocks},
    {"switchyard_train_steps_total", "Steps done, those that were done again after a loss among them.", &Counts::steps},
    {"switchyard_train_tokens_total", "Tokens trained; those of steps that were done again count once.",
     &Counts::tokens},
    {"switchyard_train_dropped_rows_total", "Rows times experts that an expert's capacity has cut off.",
     &Counts::dropped_rows},
    {"switchyard_train_checkpoints_total", "Checkpoints saved.", &Counts::checkpoints},
};

struct PhaseRow {
  const char* phase;
  double jobs::StepSeconds::*seconds;
};
const PhaseRow kPhases[] = {
    {"forward", &jobs::StepSeconds::forward},
    {"backward", &jobs::StepSeconds::backward},
    {"expert", &jobs::StepSeconds::experts},
    {"all_to_all", &jobs::StepSeconds::all_to_all},
    {"all_reduce", &jobs::StepSeconds::all_reduce},
    {"optimizer", &jobs::StepSeconds::optimizer},
    {"data", &jobs::StepSeconds::data},
};

using Slot = TrainingCounts::Slot;
struct SlotRow {
  const char* name;
  const char* help;
  double (*value)(const Slot&);
};
// A skipped step has no measurements: NaN, since a zero would look like one.
double Measured(const Slot& slot, double value) {
  return slot.progress.skipped ? std::numeric_limits<double>::quiet_NaN() : value;
}
const SlotRow kSlotGauges[] = {
    {"switchyard_train_loss",
     "Loss of the last step: mean cross-entropy, nats a token; with preferences mean of the pairs' losses.",
     [](const Slot& s) { return Measured(s, s.progress.loss); }},
    {"switchyard_train_balance_loss", "Load-balancing loss of the last step, without its weight.",
     [](const Slot& s) { return Measured(s, s.progress.balance_loss); }},
    {"switchyard_train_z_loss", "Router z-loss of the last step, without its weight.",
     [](const Slot& s) { return Measured(s, s.progress.z_loss); }},
    {"switchyard_train_learning_rate", "Learning rate of the last step.",
     [](const Slot& s) { return s.progress.learning_rate; }},
    {"switchyard_train_gradient_norm", "Norm of the last step's gradient, before it was clipped.",
     [](const Slot& s) { return Measured(s, s.progress.gradient_norm); }},
    {"switchyard_train_tokens_per_second", "Tokens trained a second, lately.",
     [](const Slot& s) { return s.progress.tokens_per_second; }},
    {"switchyard_train_step", "Steps done.", [](const Slot& s) { return static_cast<double>(s.progress.step); }},
    {"switchyard_train_dead_experts", "Experts of all layers that no token of the last step has chosen.",
     [](const Slot& s) { return static_cast<double>(s.progress.dead_experts); }},
    {"switchyard_train_padding_ratio", "Part of the last step's sequences that no document filled.",
     [](const Slot& s) { return s.progress.padding; }},
    {"switchyard_train_packing", "Replicas of every expert that the workers keep.",
     [](const Slot& s) { return static_cast<double>(s.progress.packing); }},
    {"switchyard_train_chunks", "Chunks into which each MoE layer's rows were cut in the last step.",
     [](const Slot& s) { return Measured(s, s.progress.chunks); }},
    {"switchyard_train_checkpoint_step", "Step of the newest checkpoint; 0 = there is none.",
     [](const Slot& s) { return static_cast<double>(s.checkpoint_step); }},
    {"switchyard_train_checkpoint_age_seconds", "Since the newest checkpoint, or since the job runs.",
     [](const Slot& s) { return s.checkpoint_age_seconds; }},
};

// Raises a counter to `value`; counters never fall.
void Reach(prometheus::Counter* counter, double value) {
  if (const double grown = value - counter->Value(); grown > 0) counter->Increment(grown);
}

}  // namespace

TrainingMetrics::TrainingMetrics(std::shared_ptr<prometheus::Registry> registry) : registry_(std::move(registry)) {
  prometheus::Registry* const into = registry_.get();
  const auto gauges = [into](const char* name, const char* help) -> auto& {
    return NewFamily(prometheus::BuildGauge(), name, help, into);
  };
  const auto counters = [into](const char* name, const char* help) -> auto& {
    return NewFamily(prometheus::BuildCounter(), name, help, into);
  };
  auto& jobs = gauges("switchyard_train_jobs", "Jobs by state; pending ones are the queue.");
  for (int state = 0; state < jobs::kNumJobStates; ++state) {
    jobs_[state] =
        &jobs.Add({{"state", absl::AsciiStrToLower(jobs::JobStateName(static_cast<jobs::JobState>(state)))}});
  }
  workers_ =
      &gauges("switchyard_train_workers", "Registered workers that train, those that also serve among them.").Add({});
  busy_workers_ = &gauges("switchyard_train_workers_busy", "Of those, the ones that a job has.").Add({});
  journal_ok_ = &gauges("switchyard_train_journal_ok",
                        "1: the journal of jobs takes what is written; 0: it does not, nothing new starts.")
                     .Add({});
  journal_ok_->Set(1);
  for (const CounterRow& row : kCounters) counters_.push_back(&counters(row.name, row.help).Add({}));
  step_seconds_ = &counters("switchyard_train_step_seconds_total", "Time of steps, on rank 0.").Add({});
  auto& phases = counters("switchyard_train_phase_seconds_total",
                          "Time of steps by phase, on rank 0; of all-to-all and all-reduce what was waited for. "
                          "Forward and backward have experts and all-to-alls in them.");
  for (const PhaseRow& row : kPhases) phases_.push_back(&phases.Add({{"phase", row.phase}}));
  for (const SlotRow& row : kSlotGauges) slot_families_.push_back(&gauges(row.name, row.help));
  slot_families_.push_back(&gauges(
      "switchyard_train_evaluation_loss",
      "Loss of the last evaluation: mean cross-entropy, nats a token; with preferences mean of the pairs' losses."));
  preference_families_ = {
      &gauges("switchyard_train_preference_margin",
              "Mean reward of the chosen answers less that of the rejected ones, of the last step's pairs."),
      &gauges("switchyard_train_preference_accuracy",
              "Part of the last step's pairs whose chosen answer has the higher reward."),
  };
  set_family_ = &gauges(
      "switchyard_train_evaluation_set_loss",
      "Loss of a set in the last evaluation: mean cross-entropy, nats a token; with preferences mean of the pairs' "
      "losses; of a job's first 16 sets.");
}

void TrainingMetrics::UpdatePreferences(int slot, const TrainingCounts::Slot* job) {
  // (A skipped step has no pairs.)
  const bool skipped = job != nullptr && job->progress.skipped && job->job == preference_jobs_[slot];
  const bool has = skipped || (job != nullptr && job->progress.preferences.has_value());
  SlotGauges& gauges = slot_preferences_[slot];
  const std::string name = has ? job->job : "";
  if (name != std::exchange(preference_jobs_[slot], name)) {
    for (size_t i = 0; i < gauges.size(); ++i) preference_families_[i]->Remove(gauges[i]);
    gauges.clear();
  }
  if (!has) return;
  const jobs::PreferenceFigures figures = job->progress.preferences.value_or(jobs::PreferenceFigures());
  const double values[] = {Measured(*job, figures.margin), Measured(*job, figures.accuracy)};
  for (size_t i = 0; i < preference_families_.size(); ++i) {
    if (i == gauges.size()) {
      gauges.push_back(&preference_families_[i]->Add({{"slot", absl::StrCat(slot)}, {"job_id", name}}));
    }
    gauges[i]->Set(values[i]);
  }
}

void TrainingMetrics::UpdateSets(int slot, const TrainingCounts::Slot* job) {
  std::map<std::string, double> losses;
  for (size_t i = 0; job != nullptr && job->evaluated && i < job->evaluation.sets.size() && i < kMaxSets; ++i) {
    const jobs::SetResult& set = job->evaluation.sets[i];
    losses.try_emplace(std::string(CutText(set.name, kMaxSetBytes)), set.loss);
  }
  SetGauges& gauges = slot_sets_[slot];
  const std::string name = job == nullptr ? "" : job->job;
  const bool same = name == std::exchange(set_jobs_[slot], name);
  for (auto it = gauges.begin(); it != gauges.end();) {
    if (same && losses.contains(it->first)) {
      ++it;
      continue;
    }
    set_family_->Remove(it->second);
    it = gauges.erase(it);
  }
  for (const auto& [set, loss] : losses) {
    prometheus::Gauge*& gauge = gauges[set];
    if (gauge == nullptr) gauge = &set_family_->Add({{"slot", absl::StrCat(slot)}, {"job_id", name}, {"set", set}});
    gauge->Set(loss);
  }
}

void TrainingMetrics::Update(const TrainingCounts& counts) {
  for (int state = 0; state < jobs::kNumJobStates; ++state) jobs_[state]->Set(static_cast<double>(counts.jobs[state]));
  workers_->Set(counts.workers);
  busy_workers_->Set(counts.busy_workers);
  journal_ok_->Set(counts.journal_ok ? 1 : 0);
  for (size_t i = 0; i < counters_.size(); ++i) {
    Reach(counters_[i], static_cast<double>(counts.*kCounters[i].count));
  }
  Reach(step_seconds_, counts.seconds.total);
  for (size_t i = 0; i < phases_.size(); ++i) Reach(phases_[i], counts.seconds.*kPhases[i].seconds);
  for (int slot = 0; slot < TrainingCounts::kSlots; ++slot) {
    SlotGauges& gauges = slots_[slot];
    const auto job = counts.slots.find(slot);
    const size_t wanted = job == counts.slots.end() ? 0 : slot_families_.size() - (job->second.evaluated ? 0 : 1);
    UpdateSets(slot, job == counts.slots.end() ? nullptr : &job->second);
    UpdatePreferences(slot, job == counts.slots.end() ? nullptr : &job->second);
    const std::string name = wanted == 0 ? "" : job->second.job;
    // Gauges of an unused slot are removed, since a zero would look like a value; and those of the job before.
    const size_t kept = name == std::exchange(slot_jobs_[slot], name) ? wanted : 0;
    while (gauges.size() > kept) {
      slot_families_[gauges.size() - 1]->Remove(gauges.back());
      gauges.pop_back();
    }
    while (gauges.size() < wanted) {
      gauges.push_back(&slot_families_[gauges.size()]->Add({{"slot", absl::StrCat(slot)}, {"job_id", name}}));
    }
    for (size_t i = 0; i < wanted; ++i) {
      gauges[i]->Set(i < std::size(kSlotGauges) ? kSlotGauges[i].value(job->second) : job->second.evaluation.loss);
    }
  }
}

}  // namespace switchyard::server
