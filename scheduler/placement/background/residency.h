// The background balancer's decision: which experts are replicated where, from merged profiles, every few hundred
// steps.
//
// Minimal movement: it starts from what is there, and a move has to save more within the horizon than its copy costs
//   saves = horizon_steps * row_seconds * rows taken off a layer's busiest device
// The busiest device is the one under the best split of the actual rows over replicas (min_max.h), expected over draws
// of noise (noise_cases.h), so that noise moves next to nothing.  Phases (prefill, decode) are balanced apart, weighted
// by their time.  First each layer is balanced (balance_search.h), then moves are ordered so that a spare slot suffices
// (residency_order.h).
// Pure and deterministic, floating point: one process decides for the others.  Does not know links or nodes (all copies
// cost the same), the order of layers in a step, or transient slots.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {

// Counts of the steps of one kind.
struct PhaseProfile {
  int64_t steps = 0;                         // > 0
  std::vector<popularity::Popularity> rows;  // [L][E] in all these steps, 1 / kRow
};

struct ResidencyCosts {
  double row_seconds = 0;   // one row more on a layer's busiest device
  double move_seconds = 0;  // what serving loses by one copy of a plan
  int64_t expert_bytes = 0;
  int64_t horizon_steps = 300;
  // Relative standard deviation of an expert's rows between windows of steady traffic, beyond counting: +-10 % is 0.06.
  double traffic_noise = 0.06;
};

struct ResidencyProblem {
  std::vector<PhaseProfile> phases;  // prefill, decode; one of both where they are counted together
  // [L] with layer_slots + 1 slots a device: the one more is for what arrives before something else departs.
  std::vector<Placement> present;
  int layer_slots = 0;  // experts of one layer that a device may host
  ResidencyCosts costs;
  uint64_t next_epoch = 1;
};

// InvalidArgument names what does not fit: shapes, more experts than slots, costs below zero, no row counted at all.
absl::StatusOr<ResidencyPlan> PlanResidency(const ResidencyProblem& problem);

// From plan->layers to a whole plan: epoch, migrations, copies and bytes.  The layers that save most move first.
// REQUIRES: CheckResidency holds of present and of plan->layers.
void AddMigrations(const ResidencyProblem& problem, ResidencyPlan* plan);

}  // namespace switchyard::placement
