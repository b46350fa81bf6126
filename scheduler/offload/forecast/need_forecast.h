// Turns expected rows into chances that an expert is needed: what a popularity estimate means for a cache.
//
// An estimate says how many rows an expert of a coming layer gets; a cache wants the chance of any.  So it is counted
// how often experts were needed, by how many rows were expected of them (half octaves from 1/64 row to 8) and how many
// layers ahead; before anything is counted the chance is 1 - exp(-rows).  Who estimated does not matter, nor that it
// may know one rank's rows alone: "nothing expected" comes to mean "needed as often as such experts were".
// Integers only, deterministic.  Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class NeedForecast {
 public:
  static constexpr int kMaxAhead = 2;
  static constexpr int kBeforePass = -1;

  explicit NeedForecast(const OffloadShape& shape);

  // The gate of need.layer has run: counts it against what was expected.  Layers as in CachePolicy.
  void Observe(const LayerNeed& need);
  // Expects rows [E], in 2^-20 (popularity.h), of the layer `ahead` after `layer`, whose gate has run.  After
  // kBeforePass: when a pass begins, ahead = 1 is layer 0; counted apart, as it knows the tokens and no gate.
  // Replaces what was expected at this distance and farther since the last Observe.  REQUIRES: ahead in [1, kMaxAhead].
  void Expect(int layer, int ahead, absl::Span<const int64_t> popularity);
  // The forecasts since the last Observe, for CachePolicy::OnGate.  Valid until the next Observe.
  absl::Span<const LayerForecast> forecasts() const { return forecasts_; }
  // [0, kChance]  ahead, layer: as in Expect.
  int32_t ChanceOf(int64_t popularity, int ahead, int layer = 0) const;

 private:
  static constexpr int kLevels = 20;
  struct Cell {
    int64_t needed = 0;  // times kChance
    int64_t seen = 0;
  };
  // Distances of forecasts before a pass come behind the others.
  static constexpr int kDistances = 2 * kMaxAhead;
  static size_t DistanceOf(int layer, int ahead);
  static int LevelOf(int64_t popularity);

  int num_layers_;
  std::array<std::array<Cell, kLevels>, kDistances> cells_;
  // [L][distance]: levels [E] of what is expected of the layer's next run; empty = nothing.
  std::vector<std::array<std::vector<int8_t>, kDistances>> expected_;
  std::array<std::vector<int32_t>, kDistances> chances_;  // [E]
  std::vector<LayerForecast> forecasts_;
};

}  // namespace switchyard::offload
