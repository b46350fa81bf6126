// The argument of our own kernels for matrix products, dense and grouped alike, passed by value; and their launchers.
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/gemm/gemm_choice_cuda.h"

namespace switchyard::ops::cuda {

struct GemmProblem : CudaGemmArgs {
  int32_t columns;  // of y: n, or n / 2 if gated
  bool x_aligned;   // rows of x begin at multiples of 16 bytes; else they are read element by element
};

GemmProblem ProblemOf(const CudaGemmArgs& args);
// In bytes, of the rows of x, y and a dense product's weight; up to 256.
int64_t CommonAlignment(const CudaGemmArgs& args);
// The facts that a choice of a kernel is made by.
CudaGemmDesc DescOf(const CudaCall& call, const GemmProblem& problem, bool grouped);

// Enqueues the kernel that config names.  REQUIRES: config is no kCublasLt, chosen for this problem's dtype and k.
// Returns a cudaError_t.  Defined in grouped_gemm_cuda.cu.
int LaunchGemm(const CudaCall& call, const GemmProblem& problem, const CudaGemmConfig& config);

// The product where format is not kCudaPlainRows, by the kernel that is chosen or that config names.  Defined in
// gemm/quantized/few_bits_gemm_cuda.cu.
int BitsGemm(const CudaCall& call, const CudaGemmArgs& args);
int LaunchBits(const CudaCall& call, const GemmProblem& problem, const CudaBitsConfig& config);

// The same for tiles with `wgmma`, which LaunchGemm leaves to it.  REQUIRES: TakesWgmma(call.device).  Defined, like
// TakesWgmma, in gemm_wgmma_cuda.cu.
int LaunchWgmma(const CudaCall& call, const GemmProblem& problem, const CudaGemmConfig& config);
// Whether the device is a Hopper and this program has machine code with Hopper's own instructions (sm_90a) for it. Asks
// the device once; thread-safe.
bool TakesWgmma(int device);

}  // namespace switchyard::ops::cuda
