// The metrics of training jobs, in one table (training_metrics.cc); a server that does not train has none of them.
//
// Gauges of one job (its loss, its step …) have the labels `job_id` and `slot`: a running job has the lowest free
// one, from 0 to TrainingCounts::kSlots - 1, until it ends; with one job at a time that is 0.  They are there only
// while it runs, so there are never more of them than slots.  The losses of its first kMaxSets evaluation sets also
// have the label `set`, a name cut to kMaxSetBytes.  Counters are of all jobs together. Thread-compatible.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/jobs/training_counts.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class TrainingMetrics {
 public:
  static constexpr size_t kMaxSets = 16, kMaxSetBytes = 128;

  explicit TrainingMetrics(std::shared_ptr<prometheus::Registry> registry);

  // Sets gauges to the counts, and adds the growth since the last call to counters.
  void Update(const TrainingCounts& counts);
  // Reports that the journal cannot be used, so that there are no jobs.
  void JournalLost() { journal_ok_->Set(0); }

 private:
  // job: of the slot; null: none.
  void UpdateSets(int slot, const TrainingCounts::Slot* job);
  void UpdatePreferences(int slot, const TrainingCounts::Slot* job);
  using SlotGauges = std::vector<prometheus::Gauge*>;  // by the table's rows

  const std::shared_ptr<prometheus::Registry> registry_;  // shared with the page
  std::array<prometheus::Gauge*, jobs::kNumJobStates> jobs_ = {};
  prometheus::Gauge* workers_ = nullptr;
  prometheus::Gauge* busy_workers_ = nullptr;
  prometheus::Gauge* journal_ok_ = nullptr;
  std::vector<prometheus::Counter*> counters_, phases_;
  prometheus::Counter* step_seconds_ = nullptr;
  std::vector<prometheus::Family<prometheus::Gauge>*> slot_families_;
  std::array<SlotGauges, TrainingCounts::kSlots> slots_;  // empty where no job has the slot
  std::array<std::string, TrainingCounts::kSlots> slot_jobs_;
  // Margin and accuracy, of jobs with preferences.
  std::array<prometheus::Family<prometheus::Gauge>*, 2> preference_families_ = {};
  std::array<SlotGauges, TrainingCounts::kSlots> slot_preferences_;
  std::array<std::string, TrainingCounts::kSlots> preference_jobs_;
  // Losses of the slots' evaluation sets, by the set's name.
  using SetGauges = std::map<std::string, prometheus::Gauge*>;
  prometheus::Family<prometheus::Gauge>* set_family_ = nullptr;
  std::array<SetGauges, TrainingCounts::kSlots> slot_sets_;
  std::array<std::string, TrainingCounts::kSlots> set_jobs_;
};

}  // namespace switchyard::server
