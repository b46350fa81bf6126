// Replays a recorded trace without a model: what the estimators would have predicted, and how even each placement mode
// would have kept so many devices.
//
// TraceBatches cuts batches; estimators learn as on live traffic (LiveEstimates), from the tokens and from the trace's
// channels gate_ahead and probe; `lina` receives the best estimate.  Tokens of a batch are given to the devices in
// order.  Counts rows alone: no compute, no links, and copies cost nothing, so that `agreed` always makes them.  Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::simulator {

struct ReplayOptions {
  popularity::Phase phase = popularity::Phase::kDecode;
  int64_t batch_tokens = 256;
  int num_devices = 4;
  int spare_slots = 1;  // a device, of the modes that have any
};

struct ReplayReport {
  struct Mode {
    placement::PlacementMode mode = placement::PlacementMode::kStatic;
    double median = 0, p95 = 0;   // of the busiest device's rows over the mean, over batches and layers
    double copies_per_layer = 0;  // experts copied, all devices
  };
  struct LoadPredictor {
    std::string name;
    double accuracy = 0, distance = 0;  // one layer ahead, mean over layers, towards the trace's end
  };
  int64_t num_batches = 0;
  std::vector<Mode> modes;
  std::vector<LoadPredictor> estimators;  // that had any estimate; by rising distance
};

// InvalidArgument: options that cannot be, with the field; a trace of fewer tokens than two batches.
absl::StatusOr<ReplayReport> ReplayTrace(const popularity::RoutingTrace& trace, const ReplayOptions& options);

}  // namespace switchyard::simulator
