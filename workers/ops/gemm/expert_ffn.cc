#include "workers/ops/gemm/expert_ffn.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/gelu.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/gemm_job.h"

namespace switchyard::ops {

absl::Status GatedGemm(const Stream& stream, const TensorView& x, const Weight& gate_up, const TensorView& hidden,
                       Isa isa, const TensorView& sums) {
  const Weight* const weights[] = {&gate_up};
  return GroupedGatedGemm(stream, {.sums = sums, .isa = isa}, x, weights, {}, hidden);
}

absl::Status GroupedGatedGemm(const Stream& stream, const GroupedGemmDesc& desc, const TensorView& x,
                              const WeightGroup& gate_up, const IntView& offsets, const TensorView& hidden) {
  return RunGemmJob(stream, {.op = "gated_gemm",
                             .x = x,
                             .x_rows = desc.x_rows,
                             .weights = gate_up,
                             .offsets = offsets,
                             .y = hidden,
                             .sums = desc.sums,
                             .gated = true,
                             .partial = desc.partial,
                             .isa = desc.isa,
                             .clamp = desc.clamp});
}

namespace {

// hidden = gelu(x · upᵀ + bias), through `sums` if they are wanted.
absl::Status GeluGemm(const Stream& stream, const ExpertFfnDesc& desc, const TensorView& x, const TensorView& hidden) {
  if (desc.partial) return absl::UnimplementedError("expert_ffn: some of the experts at a time, with gelu");
  const TensorView& sums = desc.sums.raw() != nullptr ? desc.sums : hidden;
  RETURN_IF_ERROR(GroupedGemm(stream, {.x_rows = desc.x_rows, .biases = desc.up_biases, .isa = desc.isa}, x,
                              desc.gate_up, desc.offsets, sums));
  return Gelu(stream, desc.activation, sums, hidden);
}

}  // namespace

absl::Status ExpertHidden(const Stream& stream, const ExpertFfnDesc& desc, const TensorView& x,
                          const TensorView& hidden) {
  if (!IsGated(desc.activation)) return GeluGemm(stream, desc, x, hidden);
  return GroupedGatedGemm(
      stream, {.x_rows = desc.x_rows, .partial = desc.partial, .sums = desc.sums, .clamp = desc.clamp, .isa = desc.isa},
      x, desc.gate_up, desc.offsets, hidden);
}

absl::Status ExpertFfn(const Stream& stream, const ExpertFfnDesc& desc, const TensorView& x, const TensorView& hidden,
                       const TensorView& y) {
  RETURN_IF_ERROR(ExpertHidden(stream, desc, x, hidden));
  return GroupedGemm(stream, {.partial = desc.partial, .biases = desc.down_biases, .isa = desc.isa}, hidden, desc.down,
                     desc.offsets, y);
}

absl::Status DenseFfn(const Stream& stream, const DenseFfnDesc& desc, const TensorView& x, const TensorView& hidden,
                      const TensorView& residual) {
  if (IsGated(desc.activation)) {
    RETURN_IF_ERROR(GatedGemm(stream, x, *desc.gate_up, hidden, CurrentIsa(), desc.sums));
  } else {
    const TensorView& sums = desc.sums.raw() != nullptr ? desc.sums : hidden;
    RETURN_IF_ERROR(Gemm(stream, {}, x, *desc.gate_up, desc.up_bias, sums));
    RETURN_IF_ERROR(Gelu(stream, desc.activation, sums, hidden));
  }
  return Gemm(stream, {.accumulate = true}, hidden, *desc.down, desc.down_bias, residual);
}

}  // namespace switchyard::ops
