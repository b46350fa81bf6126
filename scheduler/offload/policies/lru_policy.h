// The policy `lru`: evicts the expert used least recently and prefetches nothing, to compare with.
//
// Each layer has an equal share of the slots, or all layers share them.  It runs in waves and copies as our policy does
// (wave_planner.h).  Uses no forecast.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/wave_planner.h"

namespace switchyard::offload {

class LruPolicy final : public CachePolicy {
 public:
  // popularity [L * E] by profile: what is resident at first.  REQUIRES: as many slots as layers if per_layer.
  LruPolicy(const OffloadShape& shape, bool per_layer, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return "lru"; }
  std::vector<ExpertKey> InitialSlots() const override { return initial_; }
  LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) override;

 private:
  ExpertCache cache_;
  WavePlanner planner_;
  std::vector<ExpertKey> initial_;
  std::vector<int64_t> last_use_;  // [L * E] gate
  int64_t num_gates_ = 0;
};

}  // namespace switchyard::offload
