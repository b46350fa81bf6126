// Warp primitives, atomics, faults and deadlocks on the emulation.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <limits>

#include "tests/cuda_emulation/test_kernels.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace cuda_emulation {
namespace {

using switchyard::ops::cuda::Launch;

class WarpTest : public EmulationTest {};
using WarpDeathTest = WarpTest;

// Results of one lane, each as a double.
constexpr int kResults = 12;

__global__ void Primitives(double* out) {
  const int lane = threadIdx.x % 32;
  double* mine = out + threadIdx.x * kResults;
  mine[0] = __shfl_sync(0xFFFFFFFFu, lane * 1.5, 5);
  mine[1] = __shfl_up_sync(0xFFFFFFFFu, lane, 3);
  mine[2] = __shfl_down_sync(0xFFFFFFFFu, static_cast<long long>(lane) << 40, 3, 8);
  mine[3] = __shfl_xor_sync(0xFFFFFFFFu, static_cast<float>(lane), 16);
  mine[4] = __ballot_sync(0xFFFFFFFFu, lane % 3 == 0);
  mine[5] = __any_sync(0xFFFFFFFFu, lane == 7) * 2 + __all_sync(0xFFFFFFFFu, lane < 31);
  mine[6] = __match_any_sync(0xFFFFFFFFu, lane / 4);
  mine[7] = __reduce_add_sync(0xFFFFFFFFu, lane);
  mine[8] = __reduce_max_sync(0xFFFFFFFFu, lane - 40);
  // Two halves, each with its own mask, at the same time.
  const unsigned half = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  mine[9] = lane < 16 ? __reduce_min_sync(half, lane) : __reduce_or_sync(half, 1u << lane);
  mine[10] = __syncthreads_count(threadIdx.x % 2 == 0);
  mine[11] = __syncthreads_or(threadIdx.x == 40) * 2 + __syncthreads_and(threadIdx.x != 40);
}

TEST_F(WarpTest, ShufflesVotesAndReductions) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SetSeed(seed);
    DeviceArray<double> out(64 * kResults);
    ASSERT_EQ(Launch({.grid = 1, .block = 64}, Primitives, out.get()), cudaSuccess);
    const std::vector<double> got = out.Read();
    for (int thread = 0; thread < 64; ++thread) {
      const int lane = thread % 32;
      const double want[kResults] = {
          7.5,
          static_cast<double>(lane < 3 ? lane : lane - 3),
          std::ldexp(lane % 8 < 5 ? lane + 3 : lane, 40),
          static_cast<double>(lane ^ 16),
          0x49249249,
          2,
          static_cast<double>(0xFull << lane / 4 * 4),
          496,
          -9,
          lane < 16 ? 0. : 0xFFFF0000,
          32,
          2,
      };
      for (int i = 0; i < kResults; ++i) EXPECT_EQ(got[thread * kResults + i], want[i]) << thread << " " << i;
    }
  }
}

__global__ void Atomics(int* cells, float* sum, unsigned long long* wide) {
  atomicAdd(&cells[0], 1);
  atomicMax(&cells[1], static_cast<int>(threadIdx.x));
  atomicMin(&cells[2], -static_cast<int>(threadIdx.x));
  atomicOr(&cells[3], 1 << threadIdx.x % 32);
  if (atomicCAS(&cells[4], 0, 1 + static_cast<int>(threadIdx.x)) == 0) atomicAdd(&cells[5], 1);
  atomicAdd(sum, 0.5f);
  atomicAdd(wide, 1ull << 33);
}

TEST_F(WarpTest, Atomics) {
  DeviceArray<int> cells(std::vector<int>(6, 0));
  DeviceArray<float> sum(std::vector<float>{0});
  DeviceArray<unsigned long long> wide(std::vector<unsigned long long>{0});
  ASSERT_EQ(Launch({.grid = 3, .block = 64}, Atomics, cells.get(), sum.get(), wide.get()), cudaSuccess);
  const std::vector<int> got = cells.Read();
  EXPECT_EQ(got[0], 192);
  EXPECT_EQ(got[1], 63);
  EXPECT_EQ(got[2], -63);
  EXPECT_EQ(got[3], -1);
  EXPECT_GT(got[4], 0);
  EXPECT_EQ(got[5], 1);
  EXPECT_EQ(sum.Read()[0], 96.f);
  EXPECT_EQ(wide.Read()[0], 192ull << 33);
}

TEST_F(WarpTest, NarrowNumbersRoundToNearestEven) {
  EXPECT_EQ(__nv_bfloat16(1.00390625f).bits, 0x3F80);  // half way, to even
  EXPECT_EQ(__nv_bfloat16(1.01171875f).bits, 0x3F82);
  EXPECT_EQ(__nv_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(static_cast<float>(__nv_bfloat16(NAN))));
  EXPECT_EQ(__half(65519.f).bits, 0x7BFF);
  EXPECT_EQ(__half(65520.f).bits, 0x7C00);
  EXPECT_EQ(__half(0x1p-25f).bits, 0);  // half way to the smallest, to even
  EXPECT_EQ(__half(0x1.8p-25f).bits, 1);
  EXPECT_TRUE(std::isnan(static_cast<float>(__half(NAN))));
  // Once to float and then to half would round twice.
  EXPECT_EQ(__half(1.0 + 0x1p-11 + 0x1p-40).bits, 0x3C01);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const __half h = __ushort_as_half(static_cast<unsigned short>(bits));
    const __nv_bfloat16 b = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(h)) || __half(static_cast<float>(h)).bits == bits) << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(b)) || __nv_bfloat16(static_cast<float>(b)).bits == bits) << bits;
  }
}

enum class Mistake {
  kReturnBeforeBarrier,
  kBarrierInBranch,
  kMaskOfEnded,
  kMaskWithoutSelf,
  kDifferentPrimitives,
  kSharedOverrun,
  kStackOverflow,
  kMisaligned,
};

int Deep(volatile int* depth) {  // deeper than any stack
  volatile char frame[1024];
  frame[0] = static_cast<char>(*depth);
  *depth = *depth + 1;
  return *depth == 1 << 30 ? 0 : Deep(depth) + frame[0];
}

__global__ void DoMistake(Mistake mistake, int* out) {
  int* shared = switchyard::ops::cuda::DynamicShared<int>();
  const bool odd = threadIdx.x % 2 == 1;
  switch (mistake) {
    case Mistake::kReturnBeforeBarrier:
      if (threadIdx.x == 33) return;
      __syncthreads();
      break;
    case Mistake::kBarrierInBranch:
      if (odd)
        __syncthreads();
      else
        __syncwarp();
      break;
    case Mistake::kMaskOfEnded:
      if (odd) return;
      out[0] = __shfl_sync(0xFFFFFFFFu, 1, 0);
      break;
    case Mistake::kMaskWithoutSelf:
      out[0] = __shfl_sync(0x1u, 1, 0);
      break;
    case Mistake::kDifferentPrimitives:
      out[0] = odd ? __shfl_sync(0xFFFFFFFFu, 1, 0) : static_cast<int>(__ballot_sync(0xFFFFFFFFu, 1));
      break;
    case Mistake::kSharedOverrun:
      shared[DynamicSharedBytes() / 4] = 1;
      break;
    case Mistake::kStackOverflow: {
      volatile int depth = 0;
      out[0] = Deep(&depth);
      break;
    }
    case Mistake::kMisaligned:
      switchyard::ops::cuda::CpAsync16(shared + 1, out, true);
      break;
  }
}

cudaError_t RunMistake(Mistake mistake) {
  int* out = nullptr;
  cudaMalloc(&out, 64);
  EXPECT_EQ(Launch({.grid = 1, .block = 64, .shared_bytes = 256}, DoMistake, mistake, out), cudaSuccess);
  return cudaDeviceSynchronize();
}

TEST_F(WarpDeathTest, ThreadsThatWaitInVainAbortWithWhoWaitsWhere) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    SetSeed(seed);
    EXPECT_DEATH(RunMistake(Mistake::kReturnBeforeBarrier),
                 "deadlock in kernel .*DoMistake.* block \\(0, 0, 0\\) of 64 threads:\n"
                 ".*\\(0, 0, 0\\) to \\(32, 0, 0\\): at __syncthreads\n.*\\(33, 0, 0\\) to \\(33, 0, 0\\): ended");
    EXPECT_DEATH(RunMistake(Mistake::kBarrierInBranch), "at __syncwarp with mask 0xffffffff\n.*: at __syncthreads");
    EXPECT_DEATH(RunMistake(Mistake::kMaskOfEnded), "at __shfl_sync with mask 0xffffffff\n.*ended");
    EXPECT_DEATH(RunMistake(Mistake::kMaskWithoutSelf), "__shfl_sync with mask 0x00000001, which lacks the calling");
    EXPECT_DEATH(RunMistake(Mistake::kDifferentPrimitives),
                 "at __ballot_sync with mask .*\n.*at __shfl_sync with mask");
  }
}

TEST_F(WarpTest, FaultsOfAKernelAreErrorsThatNameIt) {
  const struct {
    Mistake mistake;
    cudaError_t error;
    const char* text;
  } cases[] = {
#ifndef __SANITIZE_ADDRESS__  // which ends the process at these two
      {Mistake::kSharedOverrun, cudaErrorIllegalAddress, "past the end of the 256 bytes of dynamic shared memory"},
      {Mistake::kStackOverflow, cudaErrorIllegalAddress, "stack overflow"},
#endif
      {Mistake::kMisaligned, cudaErrorMisalignedAddress, "cp.async: shared address not aligned to 16 bytes"},
  };
  for (const auto& c : cases) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunMistake(c.mistake), c.error);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find(c.text), std::string::npos) << text;
    Reset();
  }
}

}  // namespace
}  // namespace cuda_emulation
