// Interface of what forecasts coming layers' rows by expert, after each gate of a pass, from this rank's rows.
//
// A load balancer gathers forecasts over the ranks and places replicas by them; an expert budget prefetches by them. No
// forecast changes what is computed.  Thread-compatible: the step's thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// The rows that this rank computes in a step.
struct ForecastPass {
  int64_t num_rows = 0;                 // T, that the layers will gate
  int64_t num_decode_rows = 0;          // the first of them are decodes, the others of prompts
  absl::Span<const int32_t> token_ids;  // [T]; -1 = not known here; empty: none is
};

class LayerLoadPredictor {
 public:
  virtual ~LayerLoadPredictor() = default;
  // A step begins.  Returns the forecasts of layer 0 and perhaps others; borrowed until the next call.
  virtual absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const ForecastPass& pass) = 0;
  // The gate of layer.index has run, its choices are on the host; layers come in order.  Returns forecasts, nearest
  // layer first, borrowed until the next call, that sum to T * K * kRow of this rank's rows.
  virtual absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const MoeContext& context,
                                                                            const LayerContext& layer) = 0;
};

}  // namespace switchyard::moe
