// The baselines `lru`, `lfu` and `static`, which use no forecast.
//
// lru and lfu keep a cache per layer (an equal share of the slots) and evict the expert of the layer used least
// recently, or in the fewest rows so far (ties: least recently).  `static` keeps the most popular experts by profile
// and streams the others through two slots.  All run in waves and copy as the other policies do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/offload/wave_planner.h"

namespace switchyard::offload {

class RulePolicy : public CachePolicy {
 public:
  enum class Rule : uint8_t { kLru, kLfu, kStatic };
  struct Options {
    Rule rule = Rule::kLru;
    bool per_layer = true;  // false: all layers share the slots
  };
  // popularity [L * E] by profile: says what is resident at first, and what `static` keeps.
  // REQUIRES: as many slots as layers where each layer has its own.
  RulePolicy(const OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return name_; }
  std::vector<ExpertKey> InitialSlots() const override { return initial_; }
  LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) override;
  void Host(ExpertKey key, bool here) override { gone_[key] = here ? 0 : 1; }
  void Prefer(ExpertKey key, bool in_memory) override;

 protected:
  // The worth of keeping the expert, by the rule.
  int64_t Keep(ExpertKey key) const;

  ExpertCache cache_;
  WavePlanner planner_;

 private:
  void Count(ExpertKey key, int64_t rows);

  Options options_;
  std::string name_;
  std::vector<ExpertKey> initial_;
  std::vector<int64_t> last_use_;  // [L * E]
  std::vector<int64_t> rows_;      // [L * E] of `lfu`, halved when they get large; of `static` whether it stays
  std::vector<uint8_t> gone_;      // [L * E] no rows come for it
  int64_t num_gates_ = 0;
};

// The experts that fill each range's slots, most popular first; ties to the smaller key.  Experts of popularity 0 fill
// none, so slots may stay empty.
std::vector<ExpertKey> PopularExperts(const OffloadShape& shape, const std::vector<SlotRange>& ranges,
                                      absl::Span<const int64_t> popularity);
// Marks the experts as resident.
void FillSlots(absl::Span<const ExpertKey> initial, ExpertCache* cache);

}  // namespace switchyard::offload
