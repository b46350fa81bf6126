// Count of the products, in this process, that cuBLASLt refused although it was chosen for them (ChooseDense), so that
// our own kernels computed them, more slowly.  A product of a CUDA graph counts once, when the graph is captured.
//
// Needs no CUDA.  Thread-safe.
#pragma once

#include <cstdint>

#include "workers/ops/gemm/gemm_choice_cuda.h"

namespace switchyard::ops {

int64_t NumCublasRefusals();
// Counts one; the process's first is also a warning in the log, with its shape.
void CountCublasRefusal(const CudaGemmDesc& desc);

}  // namespace switchyard::ops
