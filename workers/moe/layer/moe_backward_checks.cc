#include "workers/moe/layer/moe_backward_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/layer/moe_checks.h"

namespace switchyard::moe {
namespace {

absl::Status CheckTensor(const char* name, const TensorView& view, DType dtype, const Shape& shape) {
  if (view.dtype() == dtype && view.shape() == shape && view.device().is_cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("moe_backward: ", name, " is ", view.ToString(), ", wants ",
                                                 DTypeName(dtype), " ", shape.ToString()));
}

// n, k: of the matrix, not of its transpose.
absl::Status CheckMatrix(const std::string& name, const ops::TrainedMatrix& matrix, DType dtype, int64_t n, int64_t k) {
  RETURN_IF_ERROR(CheckTensor(absl::StrCat("gradient of ", name).c_str(), matrix.gradient, AccDType(dtype), {n, k}));
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
      CheckMatrix(name + " gate_up", ffn.gate_up, desc.dtype, ops::SumsWidth(desc.activation, width), desc.hidden));
  return CheckMatrix(name + " down", ffn.down, desc.dtype, desc.hidden, width);
}

absl::Status CheckWeights(const MoeContext& context, const MoeLayer& layer, const MoeBackwardWeights& weights) {
  const MoeLayerDesc& desc = layer.desc;
  RETURN_IF_ERROR(CheckMatrix("router", weights.router, desc.dtype, context.layout->num_experts(), desc.hidden));
  const absl::Span<const int32_t> residents = context.layout->Residents(context.comm->rank());
  if (weights.experts.size() != residents.size()) {
    return absl::InvalidArgumentError(absl::StrCat("moe_backward: gradients of ", weights.experts.size(),
                                                   " experts for ", residents.size(), " resident ones"));
  }
  for (size_t s = 0; s < residents.size(); ++s) {
    if (residents[s] < 0) continue;
    RETURN_IF_ERROR(CheckFfn(absl::StrCat("expert ", residents[s]), weights.experts[s], desc, desc.expert_ffn));
  }
  if (desc.shared_ffn == 0) return absl::OkStatus();
  if (weights.shared == nullptr) return absl::InvalidArgumentError("moe_backward: no gradients of the shared expert");
  RETURN_IF_ERROR(CheckFfn("shared", *weights.shared, desc, desc.shared_ffn));
  if (layer.weights.shared_gate == nullptr) return absl::OkStatus();
  return CheckMatrix("shared_gate", weights.shared_gate, desc.dtype, 1, desc.hidden);
}

absl::Status CheckForward(const MoeContext& context, const MoeSaved* saved, int64_t rows) {
  if (saved == nullptr || saved->num_chunks == 0) {
    return absl::FailedPreconditionError("moe_backward: no forward pass of this layer has been saved");
  }
  if (saved->num_chunks == context.schedule->num_chunks && saved->topk_idx.dim(0) == rows) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("moe_backward: ", rows, " rows in ", context.schedule->num_chunks,
                                                    " micro-batches where the forward pass saved ",
                                                    saved->topk_idx.dim(0), " in ", saved->num_chunks));
}

}  // namespace

absl::Status CheckBackward(const MoeContext& context, const MoeLayer& layer, const MoeSaved* saved,
                           const MoeBackwardWeights& weights, const MoeBackwardRows& rows) {
  SY_CHECK_EQ(context.layout->num_ranks(), context.comm->world());
  const MoeLayerDesc& desc = layer.desc;
  if (!context.stream->device().is_cpu()) return absl::UnimplementedError("moe_backward: on a device");
  const Shape shape = {rows.x.rank() == 2 ? rows.x.dim(0) : 0, desc.hidden};
  RETURN_IF_ERROR(CheckTensor("x", rows.x, desc.dtype, shape));
  RETURN_IF_ERROR(CheckTensor("d_residual", rows.d_residual, AccDType(desc.dtype), shape));
  const DType d_x = rows.d_x.dtype() == desc.dtype ? desc.dtype : AccDType(desc.dtype);
  RETURN_IF_ERROR(CheckTensor("d_x", rows.d_x, d_x, shape));
  RETURN_IF_ERROR(CheckForward(context, saved, shape[0]));
  RETURN_IF_ERROR(CheckSchedule(*context.schedule, layer));
  return CheckWeights(context, layer, weights);
}

}  // namespace switchyard::moe
