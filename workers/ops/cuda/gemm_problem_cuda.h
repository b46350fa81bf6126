// What the kernels of our own for matrix products take, dense and grouped alike, and who launches them.
//
// A dense product is a grouped one with one expert whose rows the host knows.  Passed to kernels by value.
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/gemm/gemm_choice_cuda.h"

namespace switchyard::ops::cuda {

struct GemmProblem {
  const void* x;               // [T or rows, K]
  const int32_t* x_rows;       // [rows], or null: row i of x
  const void* const* weights;  // [experts], or null: `weight` for all
  const void* weight;
  const int32_t* offsets;  // [experts + 1], or null: one expert has all rows
  const void* bias;        // [N] or null; never with gated
  void* y;                 // [rows, columns]
  int64_t rows;            // a bound if there are offsets
  int64_t n, k, x_stride, w_stride, y_stride;
  int32_t experts;
  int32_t columns;  // of y: n, or n / 2 if gated
  uint8_t dtype, y_dtype;
  bool accumulate, gated;
  bool x_aligned;  // rows of x begin at multiples of 16 bytes; else they are read element by element
};

GemmProblem DenseProblem(const DenseGemmArgs& args);
GemmProblem GroupedProblem(const CudaGroupedGemmArgs& args);
// Both: what a choice is made by.
CudaGemmDesc DescOf(const CudaCall& call, const GemmProblem& problem, bool grouped);

// Enqueues the kernel that config names.  REQUIRES: config is no kCublasLt, chosen for this problem's dtype and k.
// Returns a cudaError_t.  Defined in grouped_gemm_cuda.cu.
int LaunchGemm(const CudaCall& call, const GemmProblem& problem, const CudaGemmConfig& config);

// The same for tiles with `wgmma`, which LaunchGemm leaves to it.  REQUIRES: TakesWgmma(call.device).  Defined, like
// TakesWgmma, in gemm_wgmma_cuda.cu.
int LaunchWgmma(const CudaCall& call, const GemmProblem& problem, const CudaGemmConfig& config);
// Whether the device is a Hopper and this program has machine code with Hopper's own instructions (sm_90a) for it. Asks
// the device once; thread-safe.
bool TakesWgmma(int device);

// How often, in this process, cuBLASLt refused a product that it was chosen for, so that LaunchGemm took over.
// Thread-safe.  Defined in gemm_cuda.cu.
int64_t NumCublasRefusals();

}  // namespace switchyard::ops::cuda
