// Where the rows of a MoE layer are computed: decided after its gate, on every rank alike.
//
// Without a placer rows follow the step's one layout.  A placer may gather what ranks know first; then all ranks call
// it for the same layers in the same order, also with no rows.  Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/placement/route/split.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_stats.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// What the gate of a layer said of this rank's rows.
struct GatedRows {
  const Stream* stream = nullptr;
  Communicator* comm = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  MoeStats* stats = nullptr;
  int moe_layer = 0;       // counts MoE layers only
  TensorView topk_idx;     // [T, K] int32 on the host, -1 = dropped
  TensorView x = {};       // [T, H] what goes to the experts, on the stream's device
  TensorView logits = {};  // [T, E] AccDType, the router's; as x
  // What a forecaster said after this gate, of this rank's rows (layer_forecaster.h); empty for the forecaster itself.
  absl::Span<const LayerEstimate> estimates = {};

  // Of a collective of this layer.
  CommCall Call(CallUse use, int64_t part = 0) const {
    return {.stream = stream, .deadline = deadline, .tag = CallTag(use, moe_layer, part)};
  }
};

// Borrowed from the placer, until its next Place.
struct LayerPlacement {
  const ExpertLayout* layout = nullptr;  // this layer's
  const SplitTable* split = nullptr;     // of its rows over replicas; null: the layout's own rule
  // What coming layers' experts get on this rank, as far as the placer knows: of all ranks' rows, those that it will
  // send here.  Nearest layer first; may be empty.
  absl::Span<const LayerEstimate> estimates = {};
};

class LayerPlacer {
 public:
  virtual ~LayerPlacer() = default;
  // Errors: the communicator's; Internal where ranks turn out to have decided differently (the group is aborted).
  virtual absl::StatusOr<LayerPlacement> Place(const GatedRows& rows) = 0;
};

}  // namespace switchyard
