// Our policy: slots go to the experts whose next use is expected soonest, and a prefetch starts only if it pays.
//
// Keeping an expert is worth Σ over its layer's coming runs of the chance that it is first needed there, discounted by
// how many layers away that is (Belady's rule with chances for knowledge; the layer just passed comes last).  The
// chance in the next run is the forecast's where there is one, else that of need_rate.h and need_path.h.
// A prefetch that is needed saves the part of its copy that is over before its layer's gate.  One that is not costs the
// worth of what it evicts, and half a chunk of the link.  It starts if the gain times its chance exceeds the cost times
// the rest, and if the link, by the virtual clock, is idle while a layer computes.  It is dropped at its layer's gate
// if it is not needed and not over.
// All integers; the clock is virtual (cache_policy.h).  A gate takes time linear in slots, experts and what
// need_path.h adds up, not in layers * experts.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/copy_timeline.h"
#include "scheduler/offload/forecast/need_path.h"
#include "scheduler/offload/forecast/need_rate.h"
#include "scheduler/offload/wave_planner.h"

namespace switchyard::offload {

class ExpectedUsePolicy final : public CachePolicy {
 public:
  struct Options {
    int prefetch_ahead = 2;  // layers ahead for which prefetches may start; 0 = none
  };
  // popularity [L * E] by profile: what is resident at first, and the first guess of how often experts are needed.
  ExpectedUsePolicy(const OffloadShape& shape, const CopyCost& cost, const Options& options,
                    absl::Span<const int64_t> popularity);

  absl::string_view name() const override {
    return options_.prefetch_ahead > 0 ? "expected_use" : "expected_use demand";
  }
  std::vector<ExpertKey> InitialSlots() const override { return initial_; }
  LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) override;
  LayerPlan OnPass(absl::Span<const LayerForecast> forecasts, int64_t ticks) override;
  const CopyTimeline& clock() const { return clock_; }
  void Learn(const LayerNeed& need) override;

 private:
  struct Candidate {
    ExpertKey key = kNoExpert;
    int32_t chance = 0;
    int ahead = 0;
  };
  struct Weighed {
    int64_t worth = 0;
    int64_t at_gate = 0;  // when it was
    int32_t chance = 0;   // in its layer's next run
  };
  // The worth of keeping the expert from this gate on; weighed once a gate.
  int64_t Worth(ExpertKey key);
  void Weigh(ExpertKey key, int ahead, int32_t chance);
  // The chance by the past alone.
  int32_t PastChance(ExpertKey key) const;
  void WeighNear(absl::Span<const LayerForecast> forecasts);
  void ListPrefetching();
  void FinalizePrefetches(const LayerNeed& need, LayerPlan* plan);
  // coming_ticks: what a coming layer computes.
  void StartPrefetches(const LayerNeed& need, int64_t coming_ticks, LayerPlan* plan);
  std::vector<Candidate> Candidates(int layer) const;

  Options options_;
  CopyCost cost_;
  ExpertCache cache_;
  WavePlanner planner_;
  CopyTimeline clock_;
  NeedRate rate_;
  NeedPath path_;
  std::vector<ExpertKey> initial_;
  std::vector<ExpertKey> prefetching_;  // by slot; some may be no longer prefetching
  int layer_ = 0;                       // the layer whose gate ran last
  int64_t layer_ticks_ = 0;             // that the layer computes
  std::vector<int32_t> layer_rows_;     // [E] of the layer's parts so far
  int64_t num_gates_ = 0;
  std::vector<int64_t> discount_;  // [2 L + 1] of a use so many layers away
  std::vector<Weighed> weighed_;   // [L * E]
};

}  // namespace switchyard::offload
