// The times that decisions about experts compare: of rows, exchanges and copies, as measured lately.
//
// It keeps sums of recent steps, which Fade halves so that they follow machine and traffic: the rows' time in experts
// and in exchanges, the time of an expert that gets few rows (so that its weights' reading bounds it), and how fast
// workers copy.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/batching/step.h"
#include "scheduler/placement/expert_cost.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/route/exchange_price.h"

namespace switchyard::server {

class PlacementCostMonitor {
 public:
  // Bytes that must be copied, by all workers together, before the speed of copies counts as measured.
  static constexpr int64_t kMeasurableBytes = int64_t{16} << 20;

  // expert_bytes: of the largest expert.  copy_bytes_per_second: speed of an emulated link, which bounds copies; 0 =
  // none.
  PlacementCostMonitor(int64_t expert_bytes, double copy_bytes_per_second);

  // Adds a finished step.  Impossible figures (negative or endless times) count as 0.
  // False: its ranks have measured nothing, as of a step that devices replay.
  bool Add(const batching::StepResult& step);
  void Fade();
  // Sets a rank's copies since it got its current slots; called after each of its reports.
  void NoteCopies(int rank, int64_t bytes, double seconds);

  // Time of one row of one expert on one rank (by experts with many rows, where there were any), and of an expert with
  // few rows; 0: not measured.
  double row_seconds() const;
  double weights_seconds() const;
  // Time to copy one expert: as measured lately, at first by the speed of a host's memory.
  double copy_seconds() const;
  // Time of one more row that a rank exchanges with others.
  double exchange_row_seconds() const { return exchange_.seconds_per_row(); }

  // One expert on one rank; before its weights' reading was measured, that by the speed of a host's memory.  None
  // before rows were measured.
  placement::ExpertCost Expert() const;

  // Returns the per-step balancer's costs.  Before measurements a row takes the time of one core, and weights none.
  placement::LayerCosts Costs() const;

 private:
  struct Sum {
    double seconds = 0, number = 0;
    double each() const { return number > 0 ? seconds / number : 0; }
  };
  struct Copies {
    int64_t bytes = 0;
    double seconds = 0;
  };

  bool AddExperts(const batching::RankResult& rank);
  // Time of one more row on the busiest rank, with its exchange.
  double busiest_row_seconds() const;

  int64_t expert_bytes_;
  double link_bytes_per_second_;  // 0 = as fast as copies are
  std::vector<Copies> copies_;    // [R] at each rank's last report
  Copies copied_;                 // lately, by all ranks
  placement::ExchangeCost exchange_;
  int num_ranks_ = 1;  // of the last step
  // Of ranks whose experts got many rows each, fewer, and so few that reading their weights took the time.  The numbers
  // are of rows, of rows, and of experts.
  Sum many_, some_, few_;
};

}  // namespace switchyard::server
