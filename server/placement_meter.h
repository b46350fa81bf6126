// What steps cost and how many there were of each kind: the measured figures that placement weighs moves by.
//
// Sums of lately done steps; whoever plans fades them by half, so that they follow the machine and the traffic.
// Measured: the rows' time in experts, the time of a layer, tokens a step.  Not measured: how fast a copy is (a host's
// memory, or the link that --expert_copy_bytes_per_second emulates) and what an exchanged row costs, which is 0 here.
// Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/batching/step.h"
#include "scheduler/placement/phase_two.h"
#include "scheduler/placement/residency.h"
#include "scheduler/popularity/expert_census.h"

namespace switchyard {

class PlacementMeter {
 public:
  // expert_bytes: of one expert; copy_bytes_per_second: 0 = as a host's memory.
  PlacementMeter(int64_t expert_bytes, double copy_bytes_per_second);

  // A step was done; `census` has its rows already.  What cannot be (times below zero or endless) counts as nothing.
  void Add(const StepResult& step, const ExpertCensus& census);
  void Fade();

  // One row of one expert on one rank, and one layer with all that belongs to it; 0 before the first step with rows.
  double row_seconds() const;
  double layer_seconds() const;
  double copy_seconds() const { return static_cast<double>(expert_bytes_) / copy_bytes_per_second_; }  // of one expert

  // The fast loop's constants.  Before anything is measured a row is taken at what one core multiplies, and nothing is
  // taken to hide a copy.
  MoveCosts Costs() const;
  // The slow loop's.
  ResidencyCosts PlanCosts(int64_t horizon_steps) const;
  // What the census has counted, as so many steps as it stands for; phases without a row are left out.
  std::vector<PhaseProfile> Profiles(const ExpertCensus& census) const;

 private:
  struct PhaseSteps {
    double steps = 0, tokens = 0;
    int64_t seen_tokens = 0;  // of the census
  };

  const int64_t expert_bytes_;
  const double copy_bytes_per_second_;
  PhaseSteps phases_[2];  // by Phase
  double expert_seconds_ = 0, expert_rows_ = 0;
  double step_seconds_ = 0, layers_ = 0;  // layers_: of all these steps
};

}  // namespace switchyard
