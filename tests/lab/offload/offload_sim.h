// Runs a cache policy over a workload and says how long it took: discrete events in integer ticks (copy_timeline.h).
//
// The machine's copy cost may differ from what the policy believes, as on a real one: decisions stay the same (see
// cache_policy.h), only the time changes.  Deterministic, pure.
#pragma once

#include <cstdint>

#include "scheduler/offload/copy_timeline.h"
#include "tests/lab/offload/offload_workload.h"

namespace switchyard {

struct OffloadRun {
  int num_slots = 0;
  offload::CopyCost cost;     // of the machine
  int64_t layer_ticks = 0;    // what a layer computes
  int64_t warmup_layers = 0;  // not counted
};

struct OffloadResult {
  int64_t ticks = 0;
  int64_t resident_ticks = 0;      // the same layers if every expert were resident
  offload::TimelineCounts counts;  // of the counted layers

  // Tokens a second relative to all resident, (0, 1].
  double relative_rate() const { return static_cast<double>(resident_ticks) / static_cast<double>(ticks); }
  double hit_rate() const { return static_cast<double>(counts.hits) / static_cast<double>(counts.uses); }
  // The share of prefetches that began to copy without a use of the expert after them; 0 without any.
  double wasted_share() const;
};

// REQUIRES: the policy is fresh and of the same shape; warmup_layers < layers of the workload.
OffloadResult RunOffload(const OffloadWorkload& workload, const OffloadRun& run, offload::CachePolicy* policy);

}  // namespace switchyard
