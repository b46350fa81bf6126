// The baselines that know no forecast of their own: `lru`, `lfu` and `static`.
//
// lru and lfu keep a cache per layer (an equal share of the slots), evict the expert of the layer used least recently,
// or in the fewest rows so far (ties: least recently).  `static` keeps the most popular experts by profile and streams
// the others through two slots.  All run in waves and copy as the other policies do.  With `prefetch` they also start,
// for the next layer, every expert whose chance in the forecast is at least one half, most likely first, into the
// slots that their rule gives up first: greedy prefetch, the same predictions as `expected_use` gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/offload/wave_planner.h"

namespace switchyard::offload {

class RulePolicy final : public CachePolicy {
 public:
  enum class Rule : uint8_t { kLru, kLfu, kStatic };
  struct Options {
    Rule rule = Rule::kLru;
    bool prefetch = false;
    bool per_layer = true;  // false: all layers share the slots
  };
  // popularity [L * E] by profile: what is resident at first, and what `static` keeps.
  // REQUIRES: as many slots as layers where each layer has its own.
  RulePolicy(const OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return name_; }
  std::vector<ExpertKey> InitialSlots() const override { return initial_; }
  LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) override;
  LayerPlan OnPass(absl::Span<const LayerForecast> forecasts, int64_t ticks) override;
  void Host(ExpertKey key, bool here) override { gone_[key] = here ? 0 : 1; }
  void Prefer(ExpertKey key, bool in_memory) override;

 private:
  int64_t Keep(ExpertKey key) const;
  void Count(ExpertKey key, int64_t rows);
  void PrefetchGreedily(const LayerForecast& forecast, int layer, LayerPlan* plan);

  Options options_;
  std::string name_;
  ExpertCache cache_;
  WavePlanner planner_;
  std::vector<ExpertKey> initial_;
  std::vector<int64_t> last_use_;  // [L * E]
  std::vector<int64_t> rows_;      // [L * E] of `lfu`, halved where they get large; for `static` whether it stays
  std::vector<uint8_t> gone_;      // [L * E] no rows come for it
  int64_t num_gates_ = 0;
};

// The most popular experts of each range's layers fill its slots, most popular first; ties to the smaller key.  Those
// of popularity 0 do not: slots may stay empty.
std::vector<ExpertKey> PopularExperts(const OffloadShape& shape, const std::vector<SlotRange>& ranges,
                                      absl::Span<const int64_t> popularity);
// Marks them as resident.
void FillSlots(absl::Span<const ExpertKey> initial, ExpertCache* cache);

}  // namespace switchyard::offload
