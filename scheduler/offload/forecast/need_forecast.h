// From rows that are expected to chances that an expert is needed: what a popularity estimate means for a cache.
//
// An estimate says how many rows an expert of a coming layer gets; a cache wants the chance of any.  How often experts
// of which so many rows were expected were needed is counted as it comes in, by size of the expectation (half octaves
// from 1/64 row to 8) and by how many layers ahead it was; before anything is counted it is 1 - exp(-rows).  So it does
// not matter who estimated, how sure it makes itself, or that it knows the rows of one rank alone where other ranks'
// rows need experts, too: nothing expected comes to mean "needed as often as such experts were".
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

  // The gate of need.layer has run: counted against what was expected of it.  Layers as in CachePolicy.
  void Observe(const LayerNeed& need);
  // Said after `layer`'s gate of the layer `ahead` after it: rows [E], in 2^-20 (popularity.h).  After kBeforePass:
  // said when a pass begins, ahead = 1 is layer 0; counted apart, as it knows the tokens and no gate. REQUIRES: ahead
  // in [1, kMaxAhead].  Takes back what was said since the last Observe of this distance and farther.
  void Expect(int layer, int ahead, absl::Span<const int64_t> popularity);
  // What was expected since the last Observe, for CachePolicy::OnGate.  Valid until the next.
  absl::Span<const LayerForecast> forecasts() const { return forecasts_; }
  // [0, kChance]  layer: that said so, as in Expect.
  int32_t ChanceOf(int64_t popularity, int ahead, int layer = 0) const;

 private:
  static constexpr int kLevels = 20;
  struct Cell {
    int64_t needed = 0;  // times kChance
    int64_t seen = 0;
  };
  // Distances, those before a pass behind the others.
  static constexpr int kDistances = 2 * kMaxAhead;
  static size_t DistanceOf(int layer, int ahead);
  static int LevelOf(int64_t popularity);

  int num_layers_;
  std::array<std::array<Cell, kLevels>, kDistances> cells_;
  // [L][distance]: levels [E] of what was expected of the layer's next run; empty: nothing was.
  std::vector<std::array<std::vector<int8_t>, kDistances>> expected_;
  std::array<std::vector<int32_t>, kDistances> chances_;  // [E]
  std::vector<LayerForecast> forecasts_;
};

}  // namespace switchyard::offload
