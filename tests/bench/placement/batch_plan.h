// The batches that a placement benchmark runs, all known before any is timed: rows of each rank and expert by layer,
// and what the estimator said of each layer beforehand.
//
// Estimates that learn (corrections, the last batch) have seen the batches before theirs, in this order, as they would
// while serving; none sees its own.  Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/route/split.h"
#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::bench {

struct PlanOptions {
  int num_ranks = 1;
  int64_t batch_tokens = 0;
  popularity::Phase phase = popularity::Phase::kPrefill;
  int first_layer = 0;
  int num_layers = 1;
  int num_batches = 1;  // more than the trace has: it begins anew
  // "path": a profile of the fit trace, its sums corrected by their last errors; or a channel of the trace ("probe"),
  // corrected likewise.
  std::string estimator = "probe";
  std::string leave_out;  // label of the fit trace's sequences that the profile does not see
};

struct PlannedLayer {
  std::vector<int32_t> counts;      // [R, E]
  popularity::Popularity estimate;  // [E]; empty = none (the first layer)
};

struct BatchPlan {
  int num_ranks = 0;
  popularity::RoutingShape shape;
  std::vector<std::vector<PlannedLayer>> batches;  // [batches][layers]
  int num_distinct = 0;                            // batches of the trace; those behind them are the same again
  double estimate_seconds = 0;                     // CPU time that one rank's rows of one layer take, median

  placement::RowCounts CountsOf(const PlannedLayer& layer) const {
    return {.num_ranks = num_ranks, .num_experts = shape.num_experts, .rows = layer.counts};
  }
};

// InvalidArgument: a trace without the channel, layers that it does not have, fewer tokens than a batch.
absl::StatusOr<BatchPlan> PlanBatches(const PlanOptions& options, const popularity::RoutingTrace& fit,
                                      const popularity::RoutingTrace& run);

}  // namespace switchyard::bench
