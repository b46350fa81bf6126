// y = x · wᵀ (+ bias), y += x · wᵀ (+ bias): the matrix product of a model's layers.
//
// Products and sums are in AccDType (fp32; fp64 for fp64), and each output adds its k products in one order that
// depends on nothing but k, dtype and instruction set: a row of y has the same bits alone or among others, on any
// number of threads.  Threads share out columns and rows, never k.  (bf16: vdpbf16ps and AMX take denormal numbers for
// zero.) A weight of few bits: weight_format.h; on the CPU.  Blocks until done.  Thread-compatible per stream.  No
// transposed x.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct GemmDesc {
  bool accumulate = false;  // add to y instead of replacing it; y is then AccDType (the residual stream)
  Isa isa = CurrentIsa();   // tests only; REQUIRES: DetectedIsa() or lower
};

// Errors (InvalidArgument): shapes or dtypes that do not fit, with both values; no CPU tensors.  M = 0 is fine.
absl::Status Gemm(const Stream& stream, const GemmDesc& desc,
                  const TensorView& x,     // [M, K] w's dtype; rows may be strided
                  const Weight& w,         // [N, K], kPanels
                  const TensorView& bias,  // [N] w's dtype, contiguous, or none: raw() == nullptr (TensorView())
                  const TensorView& y);    // [M, N] w's dtype or AccDType; rows may be strided; not overlapping x

// How a product of this shape is computed and cut into tasks.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kBf16;
  WeightFormat format = WeightFormat::kPlain;
  Isa isa = Isa::kScalar;
  bool gated = false;
  int num_threads = 1;  // for this product alone
};
struct GemmConfig {
  int64_t rows_per_task = 0;  // their activations stay in the L2 cache while weight panels pass by
  int64_t min_panels = 0;     // a task has at least so many, unless fewer are left; the first ones have many more
};
// Pure.  A configuration changes speed, never bits.
GemmConfig ChooseGemm(const GemmShape& shape);

}  // namespace switchyard::ops
