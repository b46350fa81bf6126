// What of a step is chosen by trial (scheduler/batching/step_trial.h): with --placement=auto, whether rows may go to
// other workers than their experts' homes (StepPlan::decides), and into how many micro-batches its rows are cut, so
// that those of one travel while experts compute another's (--micro_batches=auto).
//
// By trial rows are cut in steps that compute prompts, where they leave their ranks, by several workers on CPUs that
// have all of their experts in memory; by trial only where exchanges take a part of the step that is worth hiding.
// Placement is tried with whole rows.  A step's time counts from when it was sent, or from the end of the one before
// it.  Used on the engine's thread; answers do not depend on it.
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/batching/step_trial.h"
#include "scheduler/fleet/worker_info.h"
#include "server/config.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class StepChoices final {
 public:
  // Borrowed; they outlive this.
  StepChoices(const ServerConfig* config, ServerMetrics* metrics);

  // Trials begin anew: other workers may be faster.
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown() { sent_.clear(); }
  // A plan is about to be sent.
  void Choose(batching::StepPlan* plan, absl::Time now);
  // Returns whether its rows were not cut.
  bool StepDone(const batching::StepResult& result, absl::Time now);

  bool tries_placement() const;
  const batching::StepTrial& placement() const { return placement_; }
  const batching::StepTrial& micro_batches() const { return micro_batches_; }
  void ReportMetrics();

 private:
  struct Sent {
    batching::TrialStep step;
    int decides = -1, cut = -1;  // ways; -1 = not chosen by trial
    bool whole = true;           // its rows are not cut
    bool stays = false;          // each rank computes its own rows
    absl::Time at;
  };
  // The way of the trial of micro-batches; -1 = not chosen by trial.
  int ChooseCut(const batching::StepPlan& plan, const batching::TrialStep& step);

  const ServerConfig* const config_;
  ServerMetrics* const metrics_;
  batching::StepTrial placement_;                                 // ways: not deciding, deciding
  batching::StepTrial micro_batches_;                             // ways: not cut, then more and more
  bool may_decide_ = false, in_place_ = false, may_cut_ = false;  // this group
  double exchange_share_ = 0;     // of the time of steps with prompts whose rows were not cut, lately
  std::map<int64_t, Sent> sent_;  // by step, those under way
  absl::Time last_done_ = absl::InfinitePast();
  int64_t reported_deciding_ = 0;  // steps that metrics show
  int64_t cut_steps_ = 0;          // that metrics do not show yet
};

}  // namespace switchyard::server
