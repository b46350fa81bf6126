// The offline bound: it knows all needs that come.  `belady` evicts the expert whose next use is farthest and copies on
// demand only; with perfect prefetch it also keeps the link busy with what is needed soonest and missing, as long as
// the expert that gives way is needed later (Cao, Felten, Karlin, Li: "A study of integrated prefetching and caching
// strategies", 1995: the aggressive rule, near the optimum but not it). For measuring only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/offload/copy_timeline.h"
#include "scheduler/offload/wave_planner.h"

namespace switchyard {

// The experts that each gate needed, in order.
using NeedSequence = std::vector<std::vector<offload::ExpertKey>>;

class BeladyPolicy final : public offload::CachePolicy {
 public:
  struct Options {
    bool prefetch = false;
    bool per_layer = false;
    bool wait = false;  // the first copy of a layer may wait for a use, where that saves an expert (wave_planner.h)
  };
  // `sequence` is borrowed; OnGate is called once for each of its entries.  popularity as in LruPolicy.
  BeladyPolicy(const offload::OffloadShape& shape, const offload::CopyCost& cost, const Options& options,
               const NeedSequence* sequence, absl::Span<const int64_t> popularity);

  absl::string_view name() const override { return name_; }
  std::vector<offload::ExpertKey> InitialSlots() const override { return initial_; }
  offload::LayerPlan OnGate(const offload::LayerNeed& need,
                            absl::Span<const offload::LayerForecast> forecasts) override;

 private:
  void PrefetchAhead(const offload::LayerNeed& need, offload::LayerPlan* plan);

  Options options_;
  offload::CopyCost cost_;
  std::string name_;
  std::vector<offload::SlotRange> ranges_;  // [L]
  offload::ExpertCache cache_;
  offload::WavePlanner planner_;
  offload::CopyTimeline clock_;
  const NeedSequence* sequence_;
  std::vector<offload::ExpertKey> initial_;
  std::vector<std::vector<int32_t>> uses_;  // [L * E] gates that need it, rising
  std::vector<int32_t> next_;               // [L * E] index into uses_ of the next one
  int32_t gate_ = 0;
};

}  // namespace switchyard
