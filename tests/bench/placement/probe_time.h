// Measures the CPU time of a probe's product on a rank: the worker's own (workers/moe/popularity/gate_forecast.h), on
// one thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::bench {

// Median CPU seconds of one forecast [rows, hidden] x [hidden, E] and its top-k, bf16.
absl::StatusOr<double> ProbeSeconds(const popularity::RoutingShape& shape, int64_t rows, int64_t hidden);

}  // namespace switchyard::bench
