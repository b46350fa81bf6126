// Decides, layer by layer, which expert copies a rank starts, into which slots, and in which order it computes.
//
// Ranks cannot diverge: a decision depends on the needs and forecasts before it and on the constants of the epoch, all
// integers, never on a copy's completion, a clock or free memory.  Policies that weigh time keep a virtual clock
// (copy_timeline.h) that only their own decisions advance.  A machine that is slower than the constants say waits; it
// never decides otherwise.
// Thread-compatible, never blocks.  Does not copy (workers/moe), nor guess what is needed (scheduler/popularity).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

// Certainty in the fixed point of chances.
inline constexpr int32_t kChance = 1 << 16;

// The gate of a layer has run.
struct LayerNeed {
  int layer = 0;
  absl::Span<const int32_t> rows;  // [E] rows of each expert in this batch; 0 = not needed
  int64_t compute_ticks = 0;       // what the whole layer computes if it waits for nothing; CopyCost's unit
  // Parts that are still to come.  A layer whose rows come in parts, its micro-batches, has a gate for each: `rows` and
  // ticks are the part's, and forecasts come with the last one.
  int parts_left = 0;
  absl::Span<const int32_t> later = {};  // [E] rows of those parts that are known by now; empty = none are
};

// The chances of a layer whose gate has not run.
struct LayerForecast {
  int ahead = 1;                     // layers after the one whose gate ran last, over the end of the pass
  absl::Span<const int32_t> chance;  // [E] that the expert is needed, [0, kChance]
};

// The costs of a copy, constants of an epoch.
struct CopyCost {
  int64_t copy_ticks = 0;       // of one expert; a multiple of chunks_per_copy
  int32_t chunks_per_copy = 1;  // a copy that has begun gives way between chunks only
};

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  virtual absl::string_view name() const = 0;
  // The experts that slots hold before the first layer, by slot; kNoExpert = empty.
  virtual std::vector<ExpertKey> InitialSlots() const = 0;
  // Before the first plan: learns from what a layer needed once, as a profile says.
  virtual void Learn(const LayerNeed&) {}
  // The plan of a layer.  Every expert with rows gets one `use`, after a `copy` if no slot holds it.
  // REQUIRES: layers come in turn, 0 … L - 1, 0 …, each with all its parts; at most one forecast of each `ahead`, in
  // rising order.
  virtual LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) = 0;
  // A pass may begin with this: forecasts are of its first layers, ahead = 1 is layer 0, whose gate runs `ticks` from
  // now.  The plan has prefetches and drops alone.
  virtual LayerPlan OnPass(absl::Span<const LayerForecast>, int64_t) { return {}; }
};

}  // namespace switchyard::offload
