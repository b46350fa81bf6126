// A plan of the background balancer: which device hosts which experts of every layer, and the migrations in which
// workers get there.
//
// Plain data and pure functions.  residency.h decides; residency_epoch.h carries a plan out, migration by migration.
// Does not say how rows are split over replicas (split.h), nor what transient slots hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// An expert that a device begins to host, or hosts no more.
struct ResidencyMove {
  int32_t layer = 0;
  int32_t expert = 0;
  int32_t device = 0;
  int32_t slot = 0;  // of the layer's placement
  bool operator==(const ResidencyMove& other) const = default;
};

// A migration, which is an epoch: arrivals are copied while the placement before is in use; from the commit on rows
// follow the new placement; departures are released once the last step that used them is done.
struct ResidencyMigration {
  std::vector<ResidencyMove> arrivals, departures;
};

// Why a layer was not changed further.
enum class StopReason : uint8_t {
  kBalanced,    // no change lowers its busiest device
  kDoesNotPay,  // the best one costs more than it saves within the horizon, or saves it in one draw of noise only
  kLimit,       // as many changes as a plan may have of one layer
};

struct LayerFacts {
  double before = 1, after = 1;  // busiest device over the mean, expected over noise and weighted over phases
  double saved_seconds = 0;      // within the horizon, by what was done
  double spent_seconds = 0;      // its copies
  StopReason stop = StopReason::kBalanced;
  double refused_saving = 0, refused_cost = 0;  // seconds within the horizon, of the best change that was not made
};

struct ResidencyPlan {
  uint64_t epoch = 0;                          // of the first migration; migration i is epoch + i
  std::vector<Placement> layers;               // [L] after the last migration, layer_slots + 1 slots a device
  std::vector<ResidencyMigration> migrations;  // in order; none = nothing moves
  int64_t copies = 0;                          // arrivals
  int64_t bytes = 0;                           // that they copy
  int64_t horizon_steps = 0;
  std::vector<LayerFacts> layer_facts;         // [L]; empty from baselines
  std::vector<std::vector<float>> row_shares;  // [L][E] of the layer's rows; empty from baselines
};

// Ids in range, each expert hosted, at most layer_slots experts of a layer on a device.  InvalidArgument names layer,
// device and figures.
absl::Status CheckResidency(const std::vector<Placement>& layers, int layer_slots);

// Carries one migration out.  InvalidArgument if a move is not possible, if before the departures a device hosts more
// than one expert too many, of a layer or of all layers together, or if an expert is nowhere after them.
absl::Status ApplyMigration(const ResidencyMigration& migration, int layer_slots, std::vector<Placement>* layers);

// The text of `switchyard experts --why E,L`: how popular the expert is, where it is, and what the plan did to it and
// why, or why nothing.  REQUIRES: a plan with facts; layer and expert in range.
std::string Explain(const ResidencyPlan& plan, int layer, int expert);

}  // namespace switchyard::placement
