#include "workers/ops/gemm/grouped_gemm.h"

#include "workers/ops/gemm/gemm_job.h"

namespace switchyard::ops {

absl::Status GroupedGemm(const Stream& stream, const GroupedGemmDesc& desc, const TensorView& x,
                         const WeightGroup& experts, const IntView& offsets, const TensorView& y) {
  return RunGemmJob(stream, {.op = "grouped_gemm",
                             .x = x,
                             .x_rows = desc.x_rows,
                             .weights = experts,
                             .offsets = offsets,
                             .biases = desc.biases,
                             .y = y,
                             .sums = desc.sums,
                             .partial = desc.partial,
                             .isa = desc.isa});
}

}  // namespace switchyard::ops
