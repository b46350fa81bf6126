#include "workers/moe/layer/moe_checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/schedule_timeline.h"
#include "workers/moe/groups/group_rows.h"

namespace switchyard::moe {
namespace {

absl::Status CheckMatrix(const char* name, const TensorView& view, DType dtype, int64_t rows, int64_t columns) {
  if (view.rank() == 2 && view.dtype() == dtype && view.dim(0) == rows && view.dim(1) == columns)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("moe_layer: ", name, " is ", view.ToString(), ", wants ",
                                                 DTypeName(dtype), " [", rows, ", ", columns, "]"));
}

absl::Status CheckTensor(const char* name, const TensorView& view, DType dtype, const Shape& shape) {
  if (view.dtype() == dtype && view.shape() == shape && view.device().is_cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("moe_backward: ", name, " is ", view.ToString(), ", wants ",
                                                 DTypeName(dtype), " ", shape.ToString()));
}

// n, k: of the matrix, not of its transpose.
absl::Status CheckTrained(const std::string& name, const ops::TrainedMatrix& matrix, DType dtype, int64_t n,
                          int64_t k) {
  if (matrix.gradient.raw() != nullptr) {  // else it is frozen
    RETURN_IF_ERROR(CheckTensor(absl::StrCat("gradient of ", name).c_str(), matrix.gradient, AccDType(dtype), {n, k}));
  }
  const ops::Weight* const transposed = matrix.transposed;
  if (transposed != nullptr && transposed->n() == k && transposed->k() == n && transposed->dtype() == dtype &&
      !transposed->gated()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("moe_backward: transpose of ", name, " is ",
                                                 transposed != nullptr ? transposed->desc().ToString() : "missing",
                                                 ", wants ", DTypeName(dtype), " [", k, ", ", n, "]"));
}

absl::Status CheckFfn(const std::string& name, const ops::FfnGradients& ffn, const MoeLayerDesc& desc, int64_t width) {
  RETURN_IF_ERROR(
      CheckTrained(name + " gate_up", ffn.gate_up, desc.dtype, ops::SumsWidth(desc.activation, width), desc.hidden));
  return CheckTrained(name + " down", ffn.down, desc.dtype, desc.hidden, width);
}

// Of one expert; trained: its A and B.
absl::Status CheckAdapter(const std::string& name, const ExpertAdapters& adapters, size_t slot,
                          const ops::TrainedAdapter& trained, DType dtype) {
  if (!adapters.any()) return absl::OkStatus();
  const ops::Weight &a = *adapters.a[slot], &b = *adapters.b[slot];
  RETURN_IF_ERROR(CheckTrained(name + " adapter's A", trained.a, dtype, a.n(), a.k()));
  return CheckTrained(name + " adapter's B", trained.b, dtype, b.n(), b.k());
}

absl::Status CheckWeights(const MoeContext& context, const MoeLayer& layer, const MoeBackwardWeights& weights) {
  const MoeLayerDesc& desc = layer.desc;
  RETURN_IF_ERROR(CheckTrained("router", weights.router, desc.dtype, context.num_experts(), desc.hidden));
  const absl::Span<const int32_t> residents = context.layout->Residents(context.comm->rank());
  if (weights.experts.size() != residents.size()) {
    return absl::InvalidArgumentError(absl::StrCat("moe_backward: gradients of ", weights.experts.size(),
                                                   " experts for ", residents.size(), " resident ones"));
  }
  for (size_t s = 0; s < residents.size(); ++s) {
    if (residents[s] < 0) continue;
    const std::string name = absl::StrCat("expert ", residents[s]);
    const ops::FfnGradients& expert = weights.experts[s];
    RETURN_IF_ERROR(CheckFfn(name, expert, desc, desc.expert_ffn));
    RETURN_IF_ERROR(
        CheckAdapter(name + " gate_up", layer.weights.gate_up_adapters, s, expert.gate_up_adapter, desc.dtype));
    RETURN_IF_ERROR(CheckAdapter(name + " down", layer.weights.down_adapters, s, expert.down_adapter, desc.dtype));
  }
  if (desc.shared_ffn == 0) return absl::OkStatus();
  if (weights.shared == nullptr) return absl::InvalidArgumentError("moe_backward: no gradients of the shared expert");
  RETURN_IF_ERROR(CheckFfn("shared", *weights.shared, desc, desc.shared_ffn));
  if (layer.weights.shared_gate == nullptr) return absl::OkStatus();
  return CheckTrained("shared_gate", weights.shared_gate, desc.dtype, 1, desc.hidden);
}

absl::Status CheckForward(const MoeContext& context, const MoeSaved* saved, int64_t rows) {
  if (saved == nullptr || saved->num_chunks == 0) {
    return absl::FailedPreconditionError("moe_backward: no forward pass of this layer has been saved");
  }
  if (saved->num_chunks == context.schedule->num_chunks && saved->topk_idx.dim(0) == rows) {
    if (saved->keeps_inputs == context.schedule->Keeps(pipeline::BufferKind::kInput) &&
        saved->keeps_hidden == context.schedule->Keeps(pipeline::BufferKind::kHidden)) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError("moe_backward: the schedule keeps other rows than that of the forward pass");
  }
  return absl::FailedPreconditionError(absl::StrCat("moe_backward: ", rows, " rows in ", context.schedule->num_chunks,
                                                    " micro-batches where the forward pass saved ",
                                                    saved->topk_idx.dim(0), " in ", saved->num_chunks));
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

namespace {

// Of experts' adapters, which a model in training may have.
absl::Status CheckAdapters(const MoeContext& context, const MoeLayer& layer) {
  const MoeLayerWeights& weights = layer.weights;
  if (!weights.adapted()) return absl::OkStatus();
  const char* with = !context.stream->device().is_cpu()     ? "a device"
                     : weights.experts != nullptr           ? "experts that are not all in tables"
                     : !ops::IsGated(layer.desc.activation) ? "gelu"
                     : layer.desc.glu_clamp.limit > 0       ? "a clamped SwiGLU"
                                                            : nullptr;
  if (with != nullptr) return absl::UnimplementedError(absl::StrCat("moe_layer: adapters of experts with ", with));
  const size_t residents = context.layout->Residents(context.comm->rank()).size();
  for (const ExpertAdapters* const adapters : {&weights.gate_up_adapters, &weights.down_adapters}) {
    if (adapters->a.size() == adapters->b.size() && (!adapters->any() || adapters->a.size() == residents)) continue;
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: adapters, ", adapters->a.size(), " A and ",
                                                   adapters->b.size(), " B, for ", residents, " resident experts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLayer(const MoeContext& context, const MoeLayer& layer) {
  const MoeLayerWeights& weights = layer.weights;
  RETURN_IF_ERROR(CheckAdapters(context, layer));
  RETURN_IF_ERROR(CheckExperts(*context.layout, context.comm->rank(), weights));
  const LayerGroups& groups = context.groups;
  if (groups.num_shards < 1 || context.layout->num_experts() % groups.num_shards != 0) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: a layout of ", context.layout->num_experts(),
                                                   " experts' shards, of each ", groups.num_shards));
  }
  if (weights.router == nullptr || weights.router->n() != context.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: router ",
                                                   weights.router ? weights.router->desc().ToString() : "is missing",
                                                   " for ", context.num_experts(), " experts"));
  }
  const TensorView& bias = weights.router_bias;
  if (bias.rank() != 0 && !(bias.shape() == Shape{context.num_experts()})) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe_layer: a router's bias ", bias.ToString(), " for ", context.num_experts(), " experts"));
  }
  if (context.add_outputs && !context.stream->device().is_cpu()) {
    return absl::UnimplementedError("moe_layer: outputs are added before they travel on hosts alone");
  }
  if (layer.desc.shared_ffn > 0 && (!ops::IsGated(layer.desc.activation) || layer.desc.glu_clamp.limit > 0)) {
    return absl::UnimplementedError("moe_layer: a shared expert with gelu or with a clamped SwiGLU");
  }
  if ((layer.desc.shared_ffn > 0) != (weights.shared_gate_up != nullptr && weights.shared_down != nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: shared_ffn is ", layer.desc.shared_ffn,
                                                   " and its weights are ",
                                                   weights.shared_gate_up ? "given" : "missing"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckOp(const MoeContext& context, const pipeline::MicroOp& op) {
  const LayerGroups& groups = context.groups;
  const bool shards = op.group == pipeline::Group::kShards, copies = op.group == pipeline::Group::kCopies;
  if ((shards && groups.shards == nullptr) || (copies && groups.copies == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", context.schedule->name, ": ",
                                                   pipeline::OpName(op), " among ", pipeline::GroupName(op.group),
                                                   ", of which there is no group"));
  }
  const bool self = op.group == pipeline::Group::kSelf;
  if (self && (groups.copies == nullptr || groups.copies->world() != context.comm->world() ||
               groups.copies->rank() != context.comm->rank())) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", context.schedule->name, ": ",
                                                   pipeline::OpName(op), " wants the experts among copies"));
  }
  const bool gathers_choices = op.rows == pipeline::RowKind::kChoices && op.kind == pipeline::MicroOpKind::kAllGather;
  if (copies && gathers_choices && op.reads.empty() &&
      groups.copy_ranks.size() != static_cast<size_t>(groups.copies->world())) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe_layer: ranks of ", groups.copy_ranks.size(), " copies of ", groups.copies->world()));
  }
  return absl::OkStatus();
}

// Programs of more than experts and chunks of rows.
absl::Status CheckGrouped(const MoeContext& context, const MoeLayer& layer) {
  const pipeline::MoeSchedule& schedule = *context.schedule;
  const char* with = !context.stream->device().is_cpu()         ? "a device"
                     : context.exchange != ExchangeMode::kExact ? "a bounded exchange"
                     : context.add_outputs                      ? "outputs that are added before they travel"
                     : context.balancer != nullptr              ? "a load balancer"
                     : layer.weights.experts != nullptr         ? "experts that are not all in tables"
                     : layer.desc.shared_ffn > 0                ? "a shared expert"
                     : !layer.weights.up_biases.empty()         ? "experts with biases"
                     : layer.desc.glu_clamp.limit > 0           ? "a clamped SwiGLU"
                     : layer.weights.adapted()                  ? "adapters of experts"
                                                                : nullptr;
  if (with != nullptr)
    return absl::UnimplementedError(absl::StrCat("moe_layer: schedule ", schedule.name, " with ", with));
  bool returns = false;
  for (const pipeline::MicroOp& op : schedule.forward) {
    returns |= op.group != pipeline::Group::kSelf && pipeline::IsCommunicating(op.kind);
    if (op.kind != pipeline::MicroOpKind::kGate || op.num_chunks == 1) continue;
    return absl::UnimplementedError(absl::StrCat("moe_layer: schedule ", schedule.name, " gates its rows in parts"));
  }
  if (!returns)
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", schedule.name, ": no rows come back"));
  if (schedule.cut == pipeline::Cut::kPeers && context.comm->world() % schedule.num_chunks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", schedule.name, ": ", context.comm->world(),
                                                   " peers in ", schedule.num_chunks, " chunks"));
  }
  for (int expert = 0; expert < context.layout->num_experts(); ++expert) {
    if (context.layout->Places(expert).size() == 1) continue;
    return absl::UnimplementedError(
        absl::StrCat("moe_layer: schedule ", schedule.name, " with replicas of expert ", expert));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSchedule(const MoeContext& context, const MoeLayer& layer) {
  const pipeline::MoeSchedule& schedule = *context.schedule;
  bool shared = false, sums_shards = context.groups.num_shards == 1;
  for (const std::vector<pipeline::MicroOp>* const ops : {&schedule.forward, &schedule.backward}) {
    for (const pipeline::MicroOp& op : *ops) {
      if (!pipeline::IsCommunicating(op.kind)) continue;
      RETURN_IF_ERROR(CheckOp(context, op));
      sums_shards |= op.group == pipeline::Group::kAllExperts;
    }
  }
  if (!GroupRows::IsPlain(context)) RETURN_IF_ERROR(CheckGrouped(context, layer));
  if (!sums_shards) {
    return absl::InvalidArgumentError(absl::StrCat("moe_layer: schedule ", schedule.name, " does not add the ",
                                                   context.groups.num_shards, " shards of an expert"));
  }
  for (const pipeline::MicroOp& op : schedule.forward) {
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
                     : context.add_outputs                      ? "outputs that are added before they travel"
                     : context.balancer != nullptr              ? "a load balancer"
                     : context.load_predictor != nullptr        ? "a load predictor"
                     : layer.weights.experts != nullptr         ? "experts that are not all in tables"
                     : context.schedule->backward.empty()       ? "a schedule that has no backward"
                                                                : nullptr;
  if (with == nullptr) return CheckOffload(context);
  return absl::UnimplementedError(absl::StrCat("moe_layer: nothing is saved for a backward pass with ", with));
}

absl::Status CheckOffload(const MoeContext& context) {
  if (context.offload != nullptr) return absl::OkStatus();
  for (const auto* ops : {&context.schedule->forward, &context.schedule->backward}) {
    if (std::none_of(ops->begin(), ops->end(), [](const auto& op) { return pipeline::IsCopying(op.kind); })) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("schedule ", context.schedule->name, " offloads activations, and there is nowhere to"));
  }
  return absl::OkStatus();
}

absl::Status CheckBackward(const MoeContext& context, const MoeLayer& layer, const MoeSaved* saved,
                           const MoeBackwardWeights& weights, const MoeBackwardRows& rows) {
  SY_CHECK_EQ(context.layout->num_ranks(), context.comm->world());
  const MoeLayerDesc& desc = layer.desc;
  if (!context.stream->device().is_cpu()) return absl::UnimplementedError("moe_backward: on a device");
  if (context.schedule->backward.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("moe_backward: schedule ", context.schedule->name, " has no backward"));
  }
  const Shape shape = {rows.x.rank() == 2 ? rows.x.dim(0) : 0, desc.hidden};
  RETURN_IF_ERROR(CheckTensor("x", rows.x, desc.dtype, shape));
  RETURN_IF_ERROR(CheckTensor("d_residual", rows.d_residual, AccDType(desc.dtype), shape));
  const DType d_x = rows.d_x.dtype() == desc.dtype ? desc.dtype : AccDType(desc.dtype);
  RETURN_IF_ERROR(CheckTensor("d_x", rows.d_x, d_x, shape));
  RETURN_IF_ERROR(CheckSchedule(context, layer));
  RETURN_IF_ERROR(CheckForward(context, saved, GroupRows::Gated(context, shape[0]).count));
  RETURN_IF_ERROR(CheckOffload(context));
  return CheckWeights(context, layer, weights);
}

}  // namespace switchyard::moe
