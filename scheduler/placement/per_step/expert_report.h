// A worker's report of its experts, sent now and then, for operators alone: the statistics of its estimators, and where
// experts are.  Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/slot_origins.h"
#include "scheduler/popularity/predictors/predictor_stats.h"

namespace switchyard::placement {

struct ExpertReport {
  std::vector<popularity::PredictorStats> predictor_stats = {};
  // Rank 0 alone sends these, as all ranks decide alike; empty where nothing moves.
  std::vector<Placement> placements = {};             // [L]
  std::vector<std::vector<SlotOrigin>> origins = {};  // [L][R * slots], of each slot's expert
  // This rank's copies since it got its slots.
  int64_t copied_bytes = 0;
  double copy_seconds = 0;
  bool operator==(const ExpertReport& other) const = default;
};

// The bounds of indices in a group's placement.
struct PlacementBounds {
  int layers = 0;   // L
  int experts = 0;  // E
  int devices = 0;  // R
};

// Whether a rank's copies can have taken so long.
bool IsCopyTime(double seconds);
// InvalidArgument names what cannot be in a group of these bounds.
absl::Status CheckExpertReport(const ExpertReport& report, const PlacementBounds& bounds);

}  // namespace switchyard::placement
