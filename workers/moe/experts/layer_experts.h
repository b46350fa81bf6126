// Where a layer's routed experts compute from, when their weights are not simply all there in tables: slots of an
// expert budget (expert_offload.h), or of a placement that changes (placed_experts.h).
//
// Bits do not depend on it: what it does is to have weights there, and to wait until they are.  On a device what it
// calls enqueues products; the weights stay until they have run. Thread-compatible: the step's thread.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class LayerExperts {
 public:
  // Borrowed.
  struct Call {
    int layer = 0;        // among the MoE layers
    int micro_batch = 0;  // of the layer: one call each, in order
    int num_micro_batches = 1;
    absl::Span<const int32_t> experts = {};  // [slots] this rank's, by slot of the layer's layout; -1 = empty slot
    absl::Span<const int32_t> offsets = {};  // [slots + 1] rows of slot s: [offsets[s], offsets[s + 1])
    // Of coming layers, the rows that this rank's experts will get: the placer's (LayerPlacement); without one those of
    // this rank's rows alone (LayerForecaster).  May be empty.
    absl::Span<const LayerEstimate> estimates = {};
    // [E] rows that this rank's own tokens have for each expert in the layer's later micro-batches; empty: not known.
    absl::Span<const int32_t> later = {};
    const Stream* stream = nullptr;  // what `compute` computes on; null: it is done when it returns
    absl::Time deadline = absl::InfiniteFuture();
    // What `compute` reads and writes, for who computes some of the rows otherwise (cold_experts.h): row i of y is of
    // row x_rows[i] of x, empty: of row i.  On the stream's device; rank 0: not told.
    TensorView x = {};    // [n, H]
    IntView x_rows = {};  // [rows]
    TensorView y = {};    // [rows, H]
    // [slots] not 0 where the rows are none of this call's, who computes them does; empty: all are.
    absl::Span<const uint8_t> elsewhere = {};
  };
  // Computes some of the layer's experts: the others' weights are null, whose rows are not this call's.
  using Compute = absl::FunctionRef<absl::Status(const WeightGroup& gate_up,  // [slots]
                                                 const WeightGroup& down)>;   // [slots]

  virtual ~LayerExperts() = default;
  // A step begins, its first gate has not run: what this rank's rows alone are expected to need in the first layers.
  // Not every step says so.  Does not wait.  Errors: a copy's that could not begin.
  virtual absl::Status BeginPass(absl::Span<const LayerEstimate>) { return absl::OkStatus(); }
  // Before a layer: InvalidArgument if it cannot run these experts.
  virtual absl::Status Check(absl::Span<const int32_t> experts) const = 0;
  // Calls `compute` until each slot with rows was in one call.  Errors: DeadlineExceeded, a failed copy's, compute's,
  // Internal (rows for an expert that is not here).
  virtual absl::Status RunLayer(const Call& call, Compute compute) = 0;
};

}  // namespace switchyard
