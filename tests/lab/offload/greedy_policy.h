// `lru` and `lfu` with greedy prefetch: for the next layer they also start every expert whose chance in the forecast is
// at least one half, most likely first, into the slots that their rule gives up first.  They get the same predictions
// as `expected_use`.  For measuring only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/offload/policies/rule_policy.h"

namespace switchyard {

// The slot of the range that is worth least, empty ones first; -1 = none below `limit`.
int32_t CheapestSlot(const offload::ExpertCache& cache, const offload::SlotRange& range, offload::KeepValue keep,
                     int64_t limit);

class GreedyPolicy final : public offload::RulePolicy {
 public:
  // As RulePolicy's.
  GreedyPolicy(const offload::OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return greedy_name_; }
  offload::LayerPlan OnGate(const offload::LayerNeed& need,
                            absl::Span<const offload::LayerForecast> forecasts) override;
  offload::LayerPlan OnPass(absl::Span<const offload::LayerForecast> forecasts, int64_t ticks) override;

 private:
  // The forecast of the layer after `layer`, if there is one.
  void Prefetch(absl::Span<const offload::LayerForecast> forecasts, int layer, offload::LayerPlan* plan);

  std::string greedy_name_;
  std::vector<offload::SlotRange> ranges_;  // [L]
};

}  // namespace switchyard
