// CoreShare: the cores and the memory that serving and training share in a process that does both.
//
// Serving shuts the gate when a plan comes and opens it for the slices that the server gives; training goes through.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "workers/process/metrics.h"
#include "workers/tensor/yield_point.h"

namespace switchyard::worker {

struct CoreShare {
  // metrics: borrowed; the gate's yields go there.
  explicit CoreShare(WorkerMetrics* metrics)
      : gate([this, metrics](absl::Duration yield) { metrics->ObserveYield(yield, gate.limit()); }) {}

  YieldPoint gate;  // its limit is set by the server
  // The KV cache's, which is taken as it fills: promised to serving, whatever of it is free now.
  std::atomic<int64_t> kv_cache_bytes{0};
};

}  // namespace switchyard::worker
