// Lina's inference on simulated GPUs: batches, layer by layer, placed by a mode of scheduler/placement.
//
// A layer is attention, [phase 2], an all-to-all, the experts that are there, those whose copies were awaited, an
// all-to-all.  Phase 1 for the next layer is under way from the first all-to-all on, beside experts, and its copies run
// beside the next attention.  Phases are time that passes on all GPUs at once; a GPU's copies follow each other.
// Seconds and bytes throughout.
// Source: Lina (ATC '23), sections 5.2 and 6.2.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"
#include "scheduler/simulator/cluster.h"

namespace switchyard::bench {

struct LinaSetup {
  simulator::Cluster cluster;  // a rank is a GPU; of the rest its links
  popularity::RoutingShape shape;
  int slots = 4;             // experts that a GPU may have, of modes that place
  double row_bytes = 0;      // of a token's row, each way
  double row_seconds = 0;    // of it in an expert
  double dense_seconds = 0;  // between two layers
  double copy_seconds = 0;   // of an expert, from host memory
  // LI-22: a phase that places, and phase 2 where nothing changes.
  double place_seconds = 6.2e-3, check_seconds = 1.45e-3;
};

struct LinaLayerPlan {
  std::vector<int32_t> counts;           // [R, E] rows
  popularity::Popularity estimate = {};  // [E]; empty: none
};

struct LinaLayerTimes {
  double seconds = 0;           // from the first GPU's gate until rows are back
  double exchange_seconds = 0;  // of both all-to-alls, waiting for others included, mean over GPUs
};

struct LinaBatch {
  double seconds = 0;
  std::vector<LinaLayerTimes> layers;
};

class LinaInference {
 public:
  // Modes: static, ideal and the paper's.  InvalidArgument: another one, or what MakePlacementPolicy refuses.
  static absl::StatusOr<LinaInference> Create(const LinaSetup& setup, placement::PlacementMode mode);
  // The next batch; slots stay as the ones before left them.  REQUIRES: a plan for each layer.  Errors: Simulate's.
  absl::StatusOr<LinaBatch> Run(const std::vector<LinaLayerPlan>& plan);

 private:
  LinaInference() = default;

  LinaSetup setup_;
  placement::PlacementMode mode_ = placement::PlacementMode::kStatic;
  std::unique_ptr<placement::PlacementPolicy> policy_;
  int64_t step_ = 0;
};

}  // namespace switchyard::bench
