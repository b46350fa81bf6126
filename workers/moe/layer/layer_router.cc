#include "workers/moe/layer/layer_router.h"

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/layer/moe_checks.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/popularity/layer_load_predictor.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::moe {

absl::StatusOr<TensorView> OnHost(const MoeContext& context, const TensorView& numbers, HostCopy* place) {
  absl::StatusOr<TensorView> on_host = place->Take(*context.stream, numbers, context.deadline);
  RETURN_IF_ERROR(context.comm->status());  // says more than that the stream was freed
  return on_host;
}

absl::Span<const int32_t> RowsBehind(const LayerContext& layer, int num_experts, std::vector<int32_t>* rows) {
  rows->clear();
  const TensorView& topk_idx = layer.topk_idx;
  const int64_t end = layer.rows().begin + layer.rows().count;
  if (!topk_idx.device().is_cpu() || end == topk_idx.dim(0)) return *rows;
  rows->resize(static_cast<size_t>(num_experts));
  const int32_t* const chosen = topk_idx.data<int32_t>();
  for (int64_t i = end * topk_idx.dim(1); i < topk_idx.NumElements(); ++i) {
    if (chosen[i] >= 0) ++(*rows)[static_cast<size_t>(chosen[i])];
  }
  return *rows;
}

absl::Status LayerRouter::Take(const MoeLayerDesc& desc, int64_t rows, int64_t experts, Device device,
                               GateMemory* memory) {
  const DType acc = AccDType(desc.dtype);
  ASSIGN_OR_RETURN(chosen_, memory->topk_idx.Take(rows, desc.router.top_k, DType::kI32, device));
  ASSIGN_OR_RETURN(topk_weight_, memory->topk_weight.Take(rows, desc.router.top_k, acc, device));
  ASSIGN_OR_RETURN(logits_, memory->logits.Take(rows, experts, acc, device));
  return absl::OkStatus();
}

absl::Status LayerRouter::Begin(const MoeContext& context, const MoeLayerDesc& desc, LayerContext* layer) {
  RETURN_IF_ERROR(Take(desc, layer->x.dim(0), context.num_experts(), context.stream->device(),
                       layer->saved != nullptr ? &layer->saved->gate_memory : &memory_));
  layer->logits = logits_;
  layer->topk_idx = chosen_;
  layer->topk_weight = topk_weight_;
  layer->layout = context.layout;
  return absl::OkStatus();
}

absl::Status LayerRouter::Route(const MoeContext& context, const MoeLayer& of, LayerContext* layer) {
  RETURN_IF_ERROR(Gate(context, of, *layer));
  RETURN_IF_ERROR(DropChoices(context, layer));
  return AskGuides(context, of, layer);
}

absl::Status LayerRouter::Gate(const MoeContext& context, const MoeLayer& of, const LayerContext& layer) const {
  const pipeline::ChunkRange rows = layer.rows();
  const TensorView logits = logits_.Rows(rows.begin, rows.count);
  RETURN_IF_ERROR(
      ops::Gemm(*context.stream, {}, layer.x.Rows(rows.begin, rows.count), *of.weights.router, TensorView(), logits));
  ops::RouterDesc desc = of.desc.router;
  desc.num_rows = layer.num_rows;
  desc.bias = of.weights.router_bias;
  return ops::RouteTopK(*context.stream, desc, logits, layer.topk_idx.Rows(rows.begin, rows.count),
                        topk_weight_.Rows(rows.begin, rows.count));
}

absl::Status LayerRouter::DropChoices(const MoeContext& context, LayerContext* layer) {
  if (context.capacity.rows == 0) return absl::OkStatus();
  if (layer->num_chunks != 1 || !chosen_.device().is_cpu()) {
    return absl::UnimplementedError("moe_layer: a capacity wants all rows gated at once, on the CPU");
  }
  RowScratch& memory = (layer->saved != nullptr ? layer->saved->gate_memory : memory_).kept_idx;
  layer->topk_idx = memory.Rows(chosen_.dim(0), chosen_.dim(1), DType::kI32);
  RETURN_IF_ERROR(CopyTensor(*context.stream, chosen_, layer->topk_idx));
  const comm::Timed timed(&context.stats->exchange_seconds);
  ASSIGN_OR_RETURN(int64_t dropped,
                   capacity_gate_.Drop(context.capacity, context.Call(comm::CallUse::kCapacityCounts, layer->index),
                                       context.num_experts(), layer->topk_idx, topk_weight_));
  context.stats->dropped_rows += dropped;
  return absl::OkStatus();
}

// Asks the load predictor what coming layers will get, and the load balancer where the gated rows go.
absl::Status LayerRouter::AskGuides(const MoeContext& context, const MoeLayer& of, LayerContext* layer) {
  if (context.load_predictor == nullptr && context.balancer == nullptr) return absl::OkStatus();
  if (layer->num_chunks != 1) {
    if (context.balancer == nullptr) return absl::OkStatus();
    return absl::UnimplementedError("moe_layer: a load balancer wants all rows gated at once");
  }
  if (context.load_predictor != nullptr || context.balancer->decides()) {
    ASSIGN_OR_RETURN(layer->topk_on_host, OnHost(context, layer->topk_idx, &choices_on_host_));
  }
  if (context.load_predictor != nullptr) {
    const absl::StatusOr<absl::Span<const placement::LayerEstimate>> reported =
        context.load_predictor->OnGate(context, *layer);
    RETURN_IF_ERROR(context.comm->status());  // says more than that the stream was freed
    RETURN_IF_ERROR(reported.status());
    layer->estimates = *reported;
  }
  return context.balancer == nullptr ? absl::OkStatus() : Place(context, of, layer);
}

absl::Status LayerRouter::Place(const MoeContext& context, const MoeLayer& of, LayerContext* layer) {
  ASSIGN_OR_RETURN(LayerPlacement placement, context.balancer->Place(context, *layer));
  SY_CHECK_EQ(placement.layout->num_ranks(), context.comm->world());
  RETURN_IF_ERROR(CheckExperts(*placement.layout, context.comm->rank(), of.weights));
  layer->layout = placement.layout;
  layer->standing = placement.standing;
  if (placement.split != nullptr) layer->split = &split_.emplace(placement.split, context.comm->rank());
  return absl::OkStatus();
}

absl::Status LayerRouter::CountChoices(const MoeContext& context, const LayerContext& layer) const {
  if (layer.x.dim(0) == 0) return absl::OkStatus();
  if (layer.expert_counts.rank() != 0) {
    RETURN_IF_ERROR(ops::CountExperts(*context.stream, layer.topk_idx, layer.expert_counts));
  }
  if (layer.decode_counts.rank() == 0) return absl::OkStatus();
  return ops::CountExperts(*context.stream, layer.topk_idx.Rows(0, layer.num_decode_rows), layer.decode_counts);
}

}  // namespace switchyard::moe
