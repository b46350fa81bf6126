#include "workers/ops/gemm/gemm.h"

#include "workers/ops/gemm/gemm_job.h"

namespace switchyard::ops {

absl::Status Gemm(const Stream& stream, const GemmDesc& desc, const TensorView& x, const Weight& w,
                  const TensorView& bias, const TensorView& y) {
  const Weight* const weights[] = {&w};
  return RunGemmJob(stream, {.op = "gemm",
                             .x = x,
                             .weights = weights,
                             .offsets = {},
                             .biases = absl::MakeConstSpan(&bias, 1),
                             .y = y,
                             .accumulate = desc.accumulate,
                             .isa = desc.isa});
}

}  // namespace switchyard::ops
