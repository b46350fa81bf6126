// LayerRouter: decides which experts a layer's rows go to, which of their choices find room, and where those experts
// are, and writes that to the LayerContext.  Memory is kept for the next layer; where a backward pass follows, choices
// are in the layer's MoeSaved.  Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/moe/dispatch/split_cursor.h"
#include "workers/moe/layer/expert_capacity.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class LayerRouter {
 public:
  // Allocates memory for so many rows.  Errors: ResourceExhausted.
  absl::Status Reserve(const MoeLayerDesc& desc, int64_t rows, int64_t experts, Device device) {
    return Take(desc, rows, experts, device, &memory_);
  }
  // Allocates memory for the choices of layer->x: REQUIRED before a layer's first Route.
  absl::Status Begin(const MoeContext& context, const MoeLayerDesc& desc, LayerContext* layer);
  // Gates layer->rows(), drops choices without room, and asks the load predictor and the load balancer.
  absl::Status Route(const MoeContext& context, const MoeLayer& of, LayerContext* layer);
  // Adds to the layer's counts, once all rows are gated.
  absl::Status CountChoices(const MoeContext& context, const LayerContext& layer) const;

  const TensorView& topk_weight() const { return topk_weight_; }  // [T, K] AccDType, 0 if dropped
  const TensorView& chosen() const { return chosen_; }            // [T, K] topk_idx before anything was dropped

 private:
  absl::Status Take(const MoeLayerDesc& desc, int64_t rows, int64_t experts, Device device, GateMemory* memory);
  absl::Status Gate(const MoeContext& context, const MoeLayer& of, const LayerContext& layer) const;
  absl::Status DropChoices(const MoeContext& context, LayerContext* layer);
  absl::Status AskGuides(const MoeContext& context, const MoeLayer& of, LayerContext* layer);
  absl::Status Place(const MoeContext& context, const MoeLayer& of, LayerContext* layer);

  TensorView chosen_, topk_weight_, logits_;  // of the present layer
  std::optional<SplitCursor> split_;          // of a load balancer's table
  GateMemory memory_;
  CapacityGate capacity_gate_;
  HostCopy choices_on_host_;
};

// [E] of this rank's rows behind those of the chunk, in `rows`; empty where the host would have to wait for them.
absl::Span<const int32_t> RowsBehind(const LayerContext& layer, int num_experts, std::vector<int32_t>* rows);
// Returns the numbers on the host, which waits for them, at most until the step's deadline.
absl::StatusOr<TensorView> OnHost(const MoeContext& context, const TensorView& numbers, HostCopy* place);

}  // namespace switchyard::moe
