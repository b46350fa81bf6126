// A plan of the background balancer: which device hosts which experts of every layer, which experts are in device
// memory, and the migrations in which workers get there.
//
// Plain data and pure functions.  residency.h decides; residency_epoch.h carries a plan out, migration by migration.
// Does not say how rows are split over replicas (split.h), nor what transient slots hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// One layer.  An expert has its weights in the memory of each device that hosts it.  An offloaded one has one host,
// which copies its weights from host memory when it is hit.
struct LayerResidency {
  Placement placement;          // [R][layer_slots + 1]; the one more is for what arrives before something else departs
  std::vector<bool> offloaded;  // [E]
  bool operator==(const LayerResidency& other) const = default;
};

struct ResidencyLimits {
  int device_slots = 0;  // experts in a device's memory, all layers together; one more while a plan is carried out
  int layer_slots = 0;   // experts of one layer that a device hosts; one more while a plan is carried out
};

enum class MoveKind : uint8_t {
  kCopy,     // the device becomes a host, and gets the weights
  kLoad,     // an offloaded expert gets memory on the device that hosts it
  kRehome,   // another device becomes the host of an offloaded expert: no weights, no memory
  kRelease,  // the device is no host any more
  kOffload,  // the device stays the host, but gives the memory back
};
absl::string_view MoveKindName(MoveKind kind);  // "copy" "load" "rehome" "release" "offload"

struct ResidencyMove {
  MoveKind kind = MoveKind::kCopy;
  int32_t layer = 0;
  int32_t expert = 0;
  int32_t device = 0;
  int32_t slot = 0;  // of the layer's placement
  bool operator==(const ResidencyMove& other) const = default;
};

// A migration, which is an epoch: arrivals are prepared while the placement before is in use; from the commit on rows
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

struct ExpertFacts {
  float share = 0;     // of the layer's rows
  float hit_rate = 0;  // share of the steps in which it has a row
};

struct ResidencyPlan {
  uint64_t epoch = 0;                          // of the first migration; migration i is epoch + i
  std::vector<LayerResidency> layers;          // [L] after the last migration
  std::vector<ResidencyMigration> migrations;  // in order; none = nothing moves
  int64_t copies = 0;                          // arrivals with weights
  int64_t bytes = 0;                           // that they copy
  int64_t horizon_steps = 0;
  std::vector<LayerFacts> layer_facts;                 // [L]; empty from baselines
  std::vector<std::vector<ExpertFacts>> expert_facts;  // [L][E]; empty from baselines
};

// Ids in range, each expert hosted, offloaded ones once, limits kept.  InvalidArgument names layer, device and figures.
absl::Status CheckResidency(const std::vector<LayerResidency>& layers, const ResidencyLimits& limits);

// Carries one migration out.  InvalidArgument if a move is not possible, if a device exceeds its limits by more than
// one before the departures, or if experts are not hosted as they must be after them.
absl::Status ApplyMigration(const ResidencyMigration& migration, const ResidencyLimits& limits,
                            std::vector<LayerResidency>* layers);

// The text of `switchyard experts --why E,L`: how popular the expert is, where it is, and what the plan did to it and
// why, or why nothing.  REQUIRES: a plan with facts; layer and expert in range.
std::string Explain(const ResidencyPlan& plan, int layer, int expert);

}  // namespace switchyard::placement
