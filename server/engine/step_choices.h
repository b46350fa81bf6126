// What of a step is chosen by trial (scheduler/batching/step_trial.h): with --placement=auto, whether rows may go to
// other workers than their experts' homes (StepPlan::decides), and into how many micro-batches its rows are cut, so
// that those of one travel while experts compute another's (--micro_batches=auto).
//
// Rows are cut where they leave their ranks, by several workers on CPUs that have all of their experts in memory.  Each
// number of micro-batches is priced (scheduler/simulator/served_layer.h) by the group's links and by experts' times;
// where one is expected to gain, those near the best are tried, for prompts and decodes apart, and what was measured
// decides.  Placement is tried with whole rows.  A step's time counts from when it was sent, or from the end of the one
// before it.  Used on the engine's thread; answers do not depend on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/batching/step_trial.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/placement/expert_cost.h"
#include "scheduler/simulator/served_layer.h"
#include "server/config.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

// For those who ask why steps run as they do.
struct ChoicesCopy {
  std::string note;  // why rows are not cut by trial; empty if they may be
  simulator::ServedLayer layer;
  int num_layers = 0;
  std::vector<int32_t> micro_batches;  // of each way of `cuts`
  std::vector<batching::StepTrial::Seen> cuts, placements;
};

// Seconds that a step of cut.most rows is expected to take, by way: those measured of whole rows, and what its layers
// are priced to save.  Empty: not known; ways with too few rows have none.  Takes some microseconds a way.
std::vector<double> ExpectedSeconds(const ChoicesCopy& choices, const batching::StepTrial::Seen& cut);

class StepChoices final {
 public:
  // Borrowed; they outlive this.
  StepChoices(const ServerConfig* config, ServerMetrics* metrics);

  // Trials begin anew: other workers may be faster.
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown() { sent_.clear(); }
  // A plan is about to be sent.  expert: an expert's times, as steps showed them; none: not yet.
  void Choose(const placement::ExpertCost& expert, batching::StepPlan* plan, absl::Time now);
  // Returns whether its rows were not cut.
  bool StepDone(const batching::StepResult& result, absl::Time now);

  bool tries_placement() const;
  const batching::StepTrial& placement() const { return placement_; }
  const batching::StepTrial& micro_batches() const { return micro_batches_; }
  void ReportMetrics();
  ChoicesCopy Copy() const;

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
  // The ways that are worth a try, a bit for each; 0: none is expected to gain.
  uint32_t WorthTrying(int64_t rows);

  const ServerConfig* const config_;
  ServerMetrics* const metrics_;
  batching::StepTrial placement_;                                 // ways: not deciding, deciding
  batching::StepTrial micro_batches_;                             // ways: not cut, then more and more
  bool may_decide_ = false, in_place_ = false, may_cut_ = false;  // this group
  simulator::ServedLayer layer_;              // this group's; its expert as it was when it was priced last
  int num_layers_ = 0;                        // of experts
  std::map<int64_t, uint32_t> worth_trying_;  // by rows
  std::map<int64_t, Sent> sent_;              // by step, those under way
  absl::Time last_done_ = absl::InfinitePast();
  int64_t reported_deciding_ = 0;  // steps that metrics show
  int64_t cut_steps_ = 0;          // that metrics do not show yet
};

}  // namespace switchyard::server
