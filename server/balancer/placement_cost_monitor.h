// What steps cost, and how many there were of each kind: the measured figures that placement weighs moves by.
//
// Sums of recent steps, which the planner halves so that they follow machine and traffic: the rows' time in experts and
// in exchanges, the time of a layer, tokens a step, and how fast workers copy.  Under an expert budget a copied replica
// evicts an expert that is needed again about as often as the share of experts that have room, so for the per-step
// balancer a copy counts 2 - share times; the background balancer weighs memory by the cost of a miss, which is a copy
// that a layer waits for.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/batching/step.h"
#include "scheduler/placement/background/residency.h"
#include "scheduler/placement/per_step/phase_two.h"
#include "scheduler/placement/route/exchange_price.h"
#include "scheduler/popularity/expert_load_stats.h"

namespace switchyard::server {

class PlacementCostMonitor {
 public:
  // Copies of so many bytes in all, by one worker or several, say how fast one is.
  static constexpr int64_t kTellingBytes = int64_t{16} << 20;

  // expert_bytes: of one expert; copy_bytes_per_second: of an emulated link, which no copy is faster than; 0 = none.
  PlacementCostMonitor(int64_t expert_bytes, double copy_bytes_per_second);

  // The share of a worker's experts, replicas among them, that it has room for, (0, 1]; 1 = all, as at first.
  void SetBudget(double share) { budget_share_ = share; }
  // A step was done and is in the load statistics.  Impossible figures (negative or endless times) count as nothing.
  void Add(const batching::StepResult& step, const popularity::ExpertLoadStats& load_stats);
  void Fade();
  // What a rank has copied since it has its slots; again after each of its reports.
  void NoteCopies(int rank, int64_t bytes, double seconds);

  // One row of one expert on one rank, and one layer with all that belongs to it; 0 before the first step with rows.
  double row_seconds() const;
  double layer_seconds() const;
  // Of one expert: as workers copied lately; before they did, as a host's memory gives it.
  double copy_seconds() const;
  // One row more that a rank exchanges with others (exchange_price.h).
  double exchange_row_seconds() const { return exchange_.seconds_per_row(); }

  // The per-step balancer's constants.  Unmeasured, a row costs what one core multiplies, and nothing hides a copy.
  placement::MoveCosts Costs() const;
  placement::ResidencyCosts PlanCosts(int64_t horizon_steps) const;
  bool HasProfiles(const popularity::ExpertLoadStats& load_stats) const;
  // What the load statistics has counted, as so many steps as it stands for; phases without a row are left out.
  std::vector<placement::PhaseProfile> Profiles(const popularity::ExpertLoadStats& load_stats) const;

 private:
  struct PhaseSteps {
    double steps = 0, tokens = 0;
    int64_t seen_tokens = 0;  // of the load statistics
  };

  struct Copies {
    int64_t bytes = 0;
    double seconds = 0;
  };

  // What one row more on the busiest rank costs, all of it.
  double busiest_row_seconds() const;

  int64_t expert_bytes_;
  double budget_share_ = 1;
  double link_bytes_per_second_;  // 0 = as fast as copies are
  std::vector<Copies> copies_;    // [R] as last told
  Copies copied_;                 // lately, of all ranks
  placement::ExchangeCost exchange_;
  int num_ranks_ = 1;     // of the last step
  PhaseSteps phases_[2];  // by Phase
  double expert_seconds_ = 0, expert_rows_ = 0;
  double step_seconds_ = 0, layers_ = 0;  // layers_: of all these steps
};

}  // namespace switchyard::server
