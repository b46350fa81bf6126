// Kernels on the emulation: threads, barriers, warp primitives, atomics, shared memory, asynchronous copies, matrix
// instructions.
#include <algorithm>
#include <numeric>

#include "tests/cuda_emulation/test_kernels.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace cuda_emulation {
namespace {

using switchyard::ops::cuda::Launch;

class KernelTest : public EmulationTest {};

__global__ void Indices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}

TEST_F(KernelTest, EveryThreadOfEveryBlockRunsOnce) {
  for (uint64_t seed : {0, 1, 2}) {
    SetSeed(seed);
    DeviceArray<int> out(std::vector<int>(2 * 3 * 2 * 24, 0));
    ASSERT_EQ(Launch({.grid = {2, 3, 2}, .block = {4, 3, 2}}, Indices, out.get()), cudaSuccess);
    const std::vector<int> got = out.Read();
    for (int i = 0; i < 12 * 24; ++i) EXPECT_EQ(got[i], i / 24 * 1000 + i % 24) << "seed " << seed;
  }
}

__global__ void ReverseBlock(const int* in, int* out, bool with_barrier) {
  __shared__ int rows[256];
  rows[threadIdx.x] = in[threadIdx.x];
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = rows[blockDim.x - 1 - threadIdx.x];
}

TEST_F(KernelTest, ABarrierMakesOtherThreadsWritesVisibleAndAMissingOneShows) {
  std::vector<int> values(256);
  std::iota(values.begin(), values.end(), 1);
  std::vector<int> reversed(values.rbegin(), values.rend());
  DeviceArray<int> in(values), out(256);
  for (bool with_barrier : {false, true}) {
    ASSERT_EQ(Launch({.grid = 1, .block = 256}, ReverseBlock, in.get(), out.get(), with_barrier), cudaSuccess);
    EXPECT_EQ(out.Read() == reversed, with_barrier);
  }
}

__global__ void SumOfBlock(const float* in, float* out) {
  __shared__ float scratch[switchyard::ops::cuda::kMaxWarps];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = switchyard::ops::cuda::BlockSum(in[i], scratch);
}

TEST_F(KernelTest, SumsOfABlock) {
  for (unsigned threads : {32u, 64u, 1024u}) {
    for (uint64_t seed : {0, 1, 2, 3}) {
      SetSeed(seed);
      std::vector<float> values(threads * 3);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13);
      DeviceArray<float> in(values), out(values.size());
      ASSERT_EQ(Launch({.grid = 3, .block = threads}, SumOfBlock, in.get(), out.get()), cudaSuccess);
      const std::vector<float> got = out.Read();
      for (size_t i = 0; i < got.size(); ++i) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(i / threads * threads);
        EXPECT_EQ(got[i], std::accumulate(first, first + threads, 0.f));
      }
    }
  }
}

}  // namespace
}  // namespace cuda_emulation
