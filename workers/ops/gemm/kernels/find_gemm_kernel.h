// Chooses the inner kernel of a product.  Internal to workers/ops.
#pragma once

#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"
#include "workers/ops/gemm/quantized/weight_format.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

// The kernel of this level, or of the next lower level with a kernel for the dtype.
// dtype: of x and y, and of a plain weight.
// REQUIRES: isa <= DetectedIsa(); a floating dtype; not fp64 with a weight of few bits.
const GemmKernel& FindGemmKernel(Isa isa, DType dtype, WeightFormat format = WeightFormat::kPlain);

}  // namespace switchyard::ops
