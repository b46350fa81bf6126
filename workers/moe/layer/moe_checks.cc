#include "workers/moe/layer/moe_checks.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

absl::Status CheckMatrix(const char* name, const TensorView& view, DType dtype, int64_t rows, int64_t columns) {
  if (view.rank() == 2 && view.dtype() == dtype && view.dim(0) == rows && view.dim(1) == columns)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("moe_layer: ", name, " is ", view.ToString(), ", wants ",
                                                 DTypeName(dtype), " [", rows, ", ", columns, "]"));
}

}  // namespace

absl::Status CheckRows(const MoeLayerDesc& desc, const TensorView& x, const TensorView& residual) {
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 0;
  RETURN_IF_ERROR(CheckMatrix("x", x, desc.dtype, rows, desc.hidden));
  return CheckMatrix("residual", residual, AccDType(desc.dtype), rows, desc.hidden);
}

absl::Status CheckExperts(const ExpertLayout& layout, int rank, const MoeLayerWeights& weights) {
  if (weights.experts != nullptr) return weights.experts->Check(layout.Residents(rank));
  const size_t residents = layout.Residents(rank).size();
  const auto gate_up = static_cast<size_t>(weights.gate_up.group().size());
  const auto down = static_cast<size_t>(weights.down.group().size());
  const size_t up_biases = weights.up_biases.size(), down_biases = weights.down_biases.size();
  if (up_biases != down_biases || (up_biases != 0 && up_biases != residents)) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: ", up_biases, " up and ", down_biases,
                                                   " down biases for ", residents, " resident experts"));
  }
  if (gate_up == residents && down == residents) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("moe_layer: ", gate_up, " gate_up and ", down, " down weights for ",
                                                 residents, " resident experts"));
}

absl::Status CheckLayer(const MoeContext& context, const MoeLayer& layer) {
  const MoeLayerWeights& weights = layer.weights;
  RETURN_IF_ERROR(CheckExperts(*context.layout, context.comm->rank(), weights));
  if (weights.router == nullptr || weights.router->n() != context.layout->num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: router ",
                                                   weights.router ? weights.router->desc().ToString() : "is missing",
                                                   " for ", context.layout->num_experts(), " experts"));
  }
  const TensorView& bias = weights.router_bias;
  if (bias.rank() != 0 && !(bias.shape() == Shape{context.layout->num_experts()})) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: a router's bias ", bias.ToString(), " for ",
                                                   context.layout->num_experts(), " experts"));
  }
  if (layer.desc.shared_ffn > 0 && !ops::IsGated(layer.desc.activation)) {
    return absl::UnimplementedError("moe_layer: a shared expert with gelu");
  }
  if ((layer.desc.shared_ffn > 0) != (weights.shared_gate_up != nullptr && weights.shared_down != nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: shared_ffn is ", layer.desc.shared_ffn,
                                                   " and its weights are ",
                                                   weights.shared_gate_up ? "given" : "missing"));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const pipeline::MoeSchedule& schedule, const MoeLayer& layer) {
  bool shared = false;
  for (const pipeline::MicroOp& op : schedule.ops) {
    shared |= op.kind == pipeline::MicroOpKind::kExpert && op.experts == pipeline::ExpertSet::kShared;
  }
  if (shared != (layer.desc.shared_ffn > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", schedule.name, shared ? " has" : " lacks",
                                                   " a shared expert, the layer ", shared ? "lacks" : "has", " one"));
  }
  return absl::OkStatus();
}

absl::Status CheckSaved(const MoeContext& context, const MoeLayer& layer) {
  const char* with = !context.stream->device().is_cpu()         ? "a device"
                     : context.exchange != ExchangeMode::kExact ? "a bounded exchange"
                     : context.placer != nullptr                ? "a placer"
                     : context.forecaster != nullptr            ? "a forecaster"
                     : layer.weights.experts != nullptr         ? "experts that are not all in tables"
                                                                : nullptr;
  if (with == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("moe_layer: nothing is saved for a backward pass with ", with));
}

}  // namespace switchyard::moe
