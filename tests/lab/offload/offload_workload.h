// The requests of a model to the expert cache, pass by pass, cut from a routing trace: batches of tokens, the experts
// that each layer needed, and what was forecast of it beforehand.
//
// Pure.  Predictions become expected rows as they come (forecast_calibration.h), one and two layers ahead, and these
// chances as a worker makes them (need_forecast.h), all with counts of earlier passes only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/popularity/trace/routing_trace.h"
#include "tests/lab/offload/belady_policy.h"

namespace switchyard {

struct OffloadStep {
  int layer = 0;
  std::vector<int32_t> rows;                   // [E]
  std::vector<std::vector<int32_t>> forecast;  // [ahead - 1][E] chances of the layers after it; empty = none
};

struct OffloadWorkload {
  int num_layers = 0;
  int num_experts = 0;
  int64_t tokens = 0;
  std::vector<OffloadStep> steps;

  NeedSequence Needs() const;
};

struct WorkloadOptions {
  int batch = 1;           // sequences that decode together, one token each a pass
  int prefill_tokens = 0;  // > 0: instead, passes of so many neighbouring tokens of one sequence
  // > 0: instead, of each sequence a pass of its first tokens, half of it at most, then some of its tokens one by one
  int prompt_tokens = 0;
  int decoded_tokens = 0;
  int64_t max_passes = 1024;
  std::string one_ahead = {};  // channel that predicts the next layer; "" = none
  std::string two_ahead = {};
};

// Sequences in the trace's order: a lane that has come to the end of its sequence goes on with the next one; the trace
// starts anew when all are used.  Sequences shorter than a chunk of prefill are one chunk.
// InvalidArgument if the trace has no sequence or no such channel.
absl::StatusOr<OffloadWorkload> CutWorkload(const popularity::RoutingTrace& trace, const WorkloadOptions& options);

// Rows of each expert of each layer in the whole trace: the marginal profile.  [L * E]
std::vector<int64_t> MarginalRows(const popularity::RoutingTrace& trace);

}  // namespace switchyard
