// Interface to expert weights that are not all permanently on the device: slots of an expert budget (expert_offload.h),
// or of a placement that changes (replicated_experts.h), or memory of other workers, too (experts_in_place.h).  Bits do
// not depend on it.  On a device the computing that it calls is enqueued, and weights stay until it has run.
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct MoeContext;  // moe_context.h, as the next
struct LayerContext;

// The rows of a layer's chunk, sorted by expert.  Borrowed.
struct ExpertRows {
  absl::Span<const int32_t> experts = {};  // [slots] this rank's, by slot of the layer's layout; -1 = empty slot
  absl::Span<const int32_t> offsets = {};  // [slots + 1] rows of slot s: [offsets[s], offsets[s + 1])
  // [E] rows that this rank's own tokens have for each expert in the layer's later chunks; empty: not known.
  absl::Span<const int32_t> later = {};
  // The rows that `compute` reads and writes (cold_experts.h computes some rows itself): row i of y is of row x_rows[i]
  // of x, empty: of row i.  On the stream's device; rank 0: not known.
  TensorView x = {};    // [n, H]
  IntView x_rows = {};  // [rows]
  TensorView y = {};    // [rows, H]
  // [slots] not 0 where this call does not compute the rows; empty: it computes all.
  absl::Span<const uint8_t> elsewhere = {};
};

// A layer's experts whose weights stay where they are as long as the group does, so that a layer needs no provider for
// them, and a step that uses no others can be recorded.
struct StandingExperts {
  ops::WeightTable gate_up, down;  // [slots]
};

class ExpertWeightProvider {
 public:
  // Computes the layer's experts whose weights are not null.
  using Compute = absl::FunctionRef<absl::Status(const ops::WeightGroup& gate_up,  // [slots]
                                                 const ops::WeightGroup& down)>;   // [slots]

  virtual ~ExpertWeightProvider() = default;
  // Receives, before a step's first gate, what this rank's rows are expected to need in the first layers.  Optional.
  // Does not wait.  Errors: a copy's that could not begin.
  virtual absl::Status BeginPass(absl::Span<const placement::LayerEstimate>) { return absl::OkStatus(); }
  // InvalidArgument: it cannot run these experts of a layer.
  virtual absl::Status Check(absl::Span<const int32_t> experts) const = 0;
  // Calls `compute`, which computes on context.stream (null: it is done when it returns), until each slot with rows was
  // in one call.  A layer's chunks come in order.  Errors: DeadlineExceeded, a failed copy's, compute's, Internal (rows
  // for an absent expert).
  virtual absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                Compute compute) = 0;
};

}  // namespace switchyard::moe
