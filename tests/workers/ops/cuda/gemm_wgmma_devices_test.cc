// Which devices take wgmma, what those with little shared memory take, and a library that refuses: only the emulation
// has all of these.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulation/control.h"
#include "tests/workers/ops/cuda/gemm_cuda_testing.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/gemm/cublas_refusals.h"

namespace switchyard::ops {
namespace {

// The answer is cached per device, so each check uses a device without a cached answer.
TEST(TakesWgmmaTest, HoppersWithTheCodeForThem) {
  EXPECT_TRUE(cuda::TakesWgmma(0));
  cudaSetDevice(5);
  EXPECT_FALSE(cuda::TakesWgmma(6)) << "not the current one, so nobody knows";
  cudaSetDevice(6);
  EXPECT_TRUE(cuda::TakesWgmma(6));
  cudaSetDevice(5);
  cuda_emulation::SetComputeCapability(8, 0);
  EXPECT_FALSE(cuda::TakesWgmma(5)) << "an A100";
  cuda_emulation::SetComputeCapability(10, 0);
  cudaSetDevice(4);
  EXPECT_FALSE(cuda::TakesWgmma(4)) << "Blackwell has no wgmma";
  cuda_emulation::SetComputeCapability(9, 0);
  cudaSetDevice(3);
  cuda_emulation::FailAt("cudaFuncGetAttributes", 1, cudaErrorInvalidDeviceFunction);
  EXPECT_FALSE(cuda::TakesWgmma(3)) << "no code for it";
  cudaSetDevice(0);
  cuda_emulation::Reset();
  EXPECT_FALSE(cuda::TakesWgmma(-1));
  EXPECT_FALSE(cuda::TakesWgmma(1000));
}

// 99 KB a block, where the tiles of 16 rows and those of prefills want more.
TEST(SmallSharedMemoryTest, ProductsTakeTilesThatFit) {
  cuda_emulation::SetComputeCapability(8, 6);
  for (const int64_t rows : {1, 9, 16, 40, 140}) {
    for (const bool deterministic : {false, true}) {
      test::Product grouped({.expert_rows = {rows, 0, rows / 2}, .n = 264, .k = 136, .gated = true});
      EXPECT_EQ(cuda::GroupedGemm(test::TestCall(deterministic), grouped.Grouped()), 0) << rows;
      grouped.Check();
    }
    test::Product dense({.expert_rows = {rows}, .n = 10000, .k = 8});  // so many columns that wide tiles are wanted
    EXPECT_EQ(cuda::DenseGemm(test::TestCall(/*deterministic=*/true), dense.Dense()), 0) << rows;
    dense.Check();
  }
  cuda_emulation::Reset();
}

// Its answer is kept: the shape's next product counts without a question.
TEST(CublasRefusalTest, AnOwnKernelTakesOver) {
  const int64_t refusals = NumCublasRefusals();
  cuda_emulation::FailAt("cublasLtMatmulAlgoGetHeuristic", 1, cudaErrorNotSupported);
  for (const int64_t expected : {refusals + 1, refusals + 2}) {
    test::Product product({.y_dtype = DType::kBf16, .expert_rows = {40}, .n = 48, .k = 64, .bias = true});
    EXPECT_EQ(cuda::DenseGemm(test::TestCall(/*deterministic=*/false), product.Dense()), 0);
    product.Check();
    EXPECT_EQ(NumCublasRefusals(), expected);
  }
  cuda_emulation::Reset();
}

}  // namespace
}  // namespace switchyard::ops
