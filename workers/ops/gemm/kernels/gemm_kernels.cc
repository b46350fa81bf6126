#include "workers/ops/gemm/kernels/gemm_kernels.h"

#include "scheduler/base/check.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"
#include "workers/ops/gemm/quantized/quantize_panel.h"
#include "workers/ops/gemm/weight.h"

namespace switchyard::ops {

static_assert(kGemmPanel == kPanelColumns && kGemmQuantGroup == kQuantGroup);
static_assert(GemmQuantBlockBytes(8, GemmScales::kBf16) == QuantBlockBytes(WeightFormat::kInt8));
static_assert(GemmQuantBlockBytes(4, GemmScales::kFp16) == QuantBlockBytes(WeightFormat::kQ4_0));
static_assert(GemmQuantBlockBytes(4, GemmScales::kFp16AndLeast) == QuantBlockBytes(WeightFormat::kQ4_1));
static_assert(kGemmUpperOffset == kUpperBitsOffset);
static_assert(GemmQuantBlockBytes(6, GemmScales::kFp16OfHalves) == QuantBlockBytes(WeightFormat::kQ6_K));

namespace {

const GemmKernel& FindIntGemmKernel(Isa isa, DType dtype, WeightFormat format) {
  SY_CHECK(dtype != DType::kF64);
  const int row = static_cast<int>(format) - 1, column = static_cast<int>(dtype);
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) {
    return (HasByteDot(Isa::kAvx512) ? avx512_vnni::kIntGemmKernels : avx512::kIntGemmKernels)[row][column];
  }
  if (isa >= Isa::kAvx2) {
    return (HasByteDot(Isa::kAvx2) ? avx_vnni::kIntGemmKernels : avx2::kIntGemmKernels)[row][column];
  }
#endif
  return baseline::kIntGemmKernels[row][column];
}

}  // namespace

const GemmKernel& FindGemmKernel(Isa isa, DType dtype, WeightFormat format) {
  SY_CHECK(IsFloating(dtype));
  SY_CHECK_LE(static_cast<int>(isa), static_cast<int>(DetectedIsa()));
  if (format != WeightFormat::kPlain) return FindIntGemmKernel(isa, dtype, format);
  const int column = static_cast<int>(dtype);
#if defined(__x86_64__)
  if (isa >= Isa::kAmx && dtype == DType::kBf16) return kAmxBf16GemmKernel;
  if (isa >= Isa::kAvx512Bf16 && dtype == DType::kBf16) return kAvx512Bf16GemmKernel;
  if (isa >= Isa::kAvx512) return avx512::kGemmKernels[column];
  if (isa >= Isa::kAvx2) return avx2::kGemmKernels[column];
#endif
  return baseline::kGemmKernels[column];
}

}  // namespace switchyard::ops
