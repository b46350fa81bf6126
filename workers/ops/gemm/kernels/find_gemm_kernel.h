// Chooses the inner kernel of a product.  Internal to workers/ops.
#pragma once

#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

// The kernel of this level, or of the next lower level with a kernel for the dtype.
// REQUIRES: isa <= DetectedIsa(); a floating dtype.
const GemmKernel& FindGemmKernel(Isa isa, DType dtype);

}  // namespace switchyard::ops
