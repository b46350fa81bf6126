// Corrects a forecast's chances by what became of forecasts that the past agreed with as much.
//
// A forecast looks at a token's hidden state, the past at what the last tokens needed (need_history.h, need_path.h);
// each knows something that the other does not.  Pairs of chances (forecast's, past's) fall into cells of a table for
// each distance (layers ahead, or whatever else reports forecasts apart); a cell learns by how much needs came more
// often than the forecast said.  Integers only.  Thread-compatible; copyable.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/forecast/learned_chance.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class ForecastBlend {
 public:
  // Distances 1 ... max_ahead.
  ForecastBlend(const OffloadShape& shape, int max_ahead);

  // [0, kChance] that the expert is needed `ahead` layers from now; remembered until its layer runs.
  // REQUIRES: 1 <= ahead <= max_ahead.
  int32_t Chance(ExpertKey key, int ahead, int32_t forecast, int32_t past);
  // Counts what the layer needed against what Chance was given of it since its last run.
  void Observe(const LayerNeed& need);

 private:
  struct Said {
    int32_t cell = -1;  // -1 = nothing
    int32_t forecast = 0;
  };

  OffloadShape shape_;
  int max_ahead_;
  std::vector<LearnedChance> cells_;  // [max_ahead, levels, levels]
  std::vector<Said> said_;            // [max_ahead, L * E]
};

}  // namespace switchyard::offload
