#include "workers/ops/expert_ffn.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm_job.h"

namespace switchyard {

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
                             .isa = desc.isa});
}

absl::Status ExpertFfn(const Stream& stream, const ExpertFfnDesc& desc, const TensorView& x, const TensorView& hidden,
                       const TensorView& y) {
  RETURN_IF_ERROR(GroupedGatedGemm(stream,
                                   {.x_rows = desc.x_rows, .partial = desc.partial, .sums = desc.sums, .isa = desc.isa},
                                   x, desc.gate_up, desc.offsets, hidden));
  return GroupedGemm(stream, {.partial = desc.partial, .isa = desc.isa}, hidden, desc.down, desc.offsets, y);
}

}  // namespace switchyard
