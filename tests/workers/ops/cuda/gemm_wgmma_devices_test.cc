// Which devices take wgmma: only the emulation has so many.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulation/control.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"

namespace switchyard {
namespace {

// The answer is kept per device, so each question is about a device that nobody has asked yet.
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

}  // namespace
}  // namespace switchyard
