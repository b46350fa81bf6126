#include "tests/lab/offload/offload_sim.h"

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

offload::TimelineCounts Minus(const offload::TimelineCounts& a, const offload::TimelineCounts& b) {
  return {a.layers - b.layers, a.uses - b.uses,
          a.hits - b.hits,     a.late - b.late,
          a.copies - b.copies, a.prefetches - b.prefetches,
          a.wasted - b.wasted, a.link_ticks - b.link_ticks};
}

// [ahead - 1][E]
std::vector<offload::LayerForecast> ForecastsOf(const std::vector<std::vector<int32_t>>& chances) {
  std::vector<offload::LayerForecast> forecasts;
  for (size_t ahead = 0; ahead < chances.size(); ++ahead) {
    if (!chances[ahead].empty()) forecasts.push_back({static_cast<int>(ahead) + 1, chances[ahead]});
  }
  return forecasts;
}

}  // namespace

double OffloadResult::wasted_share() const {
  return counts.prefetches == 0 ? 0 : static_cast<double>(counts.wasted) / static_cast<double>(counts.prefetches);
}

OffloadResult RunOffload(const OffloadWorkload& workload, const OffloadRun& run, offload::CachePolicy* policy) {
  SY_CHECK_LT(run.warmup_layers, static_cast<int64_t>(workload.steps.size()));
  offload::CopyTimeline timeline({workload.num_layers, workload.num_experts, run.num_slots}, run.cost);
  timeline.Preload(policy->InitialSlots());
  OffloadResult result;
  offload::TimelineCounts before;
  for (size_t i = 0; i < workload.steps.size(); ++i) {
    const OffloadStep& step = workload.steps[i];
    const std::vector<offload::LayerForecast> forecasts = ForecastsOf(step.forecast);
    const offload::LayerNeed need = {step.layer, step.rows, run.layer_ticks};
    const int64_t ticks = timeline.Run(policy->OnGate(need, forecasts), need);
    if (static_cast<int64_t>(i) < run.warmup_layers) {
      before = timeline.counts();
      continue;
    }
    result.ticks += ticks;
    result.resident_ticks += run.layer_ticks;
  }
  result.counts = Minus(timeline.counts(), before);
  return result;
}

}  // namespace switchyard
