// The baselines `lfu` and `static`, which use no forecast.  For measuring only.
//
// lfu keeps a cache per layer (an equal share of the slots) and evicts the expert of the layer used in the fewest rows
// so far (ties: least recently).  `static` keeps the most popular experts by profile and streams the others through two
// slots.  Both run in waves and copy as the other policies do.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/wave_planner.h"

namespace switchyard {

class RulePolicy final : public offload::CachePolicy {
 public:
  enum class Rule : uint8_t { kLfu, kStatic };
  struct Options {
    Rule rule = Rule::kLfu;
    bool per_layer = true;  // false: all layers share the slots
  };
  // popularity [L * E] by profile: says what is resident at first, and what `static` keeps.
  // REQUIRES: as many slots as layers where each layer has its own.
  RulePolicy(const offload::OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return options_.rule == Rule::kLfu ? "lfu" : "static"; }
  std::vector<offload::ExpertKey> InitialSlots() const override { return initial_; }
  offload::LayerPlan OnGate(const offload::LayerNeed& need,
                            absl::Span<const offload::LayerForecast> forecasts) override;

 private:
  void Count(offload::ExpertKey key, int64_t rows);

  offload::ExpertCache cache_;
  offload::WavePlanner planner_;
  Options options_;
  std::vector<offload::ExpertKey> initial_;
  std::vector<int64_t> last_use_;  // [L * E]
  std::vector<int64_t> rows_;      // [L * E] of `lfu`, halved when they get large; of `static` whether it stays
  int64_t num_gates_ = 0;
};

}  // namespace switchyard
