// The twins of the PTX instructions: matrix products, matrix loads, asynchronous copies, dependent launches.
#include <cmath>
#include <cstring>

#include "tests/cuda_emulation/test_kernels.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace cuda_emulation {
namespace {

using namespace switchyard::ops::cuda;  // NOLINT: the functions under test

class PtxTest : public EmulationTest {};
using PtxDeathTest = PtxTest;

// d = a * b of one tile, by the ways a kernel may load its fragments.
template <class Elem>
__global__ void OneTile(const Elem* a,    // [16, 16]
                        const Elem* b,    // [16, 8]
                        const Elem* b_t,  // [8, 16]
                        float* d,         // [2, 16, 8]
                        int* agree) {
  alignas(16) __shared__ Elem a_rows[16 * 16];
  alignas(16) __shared__ Elem b_rows[16 * 8];
  alignas(16) __shared__ Elem b_columns[8 * 16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) a_rows[i] = a[i];
  for (int i = lane; i < 128; i += 32) b_rows[i] = b[i], b_columns[i] = b_t[i];
  __syncthreads();
  uint32_t a_fragment[4], b_fragment[2], four[4];
  LdMatrixX4(a_fragment, &a_rows[lane % 16 * 16 + lane / 16 * 8]);
  LdMatrixX2(b_fragment, &b_columns[lane % 8 * 16 + lane / 8 % 2 * 8]);
  LdMatrixX4Trans(four, &b_rows[lane % 16 * 8]);
  atomicAnd(agree, four[0] == b_fragment[0] && four[1] == b_fragment[1] && four[0] == four[2] && four[1] == four[3]);
  float sums[4] = {1, 1, 1, 1};
  MmaM16N8K16<Elem>(sums, a_fragment, b_fragment);
  for (int r = 0; r < 4; ++r) d[(lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = sums[r];
  // By hand, as the PTX ISA draws them.
  const int g = lane / 4, c = lane % 4 * 2;
  const auto pair = [](Elem low, Elem high) {
    uint16_t bits[2];
    std::memcpy(&bits[0], &low, 2);
    std::memcpy(&bits[1], &high, 2);
    return static_cast<uint32_t>(bits[1]) << 16 | bits[0];
  };
  const uint32_t a_hand[4] = {
      pair(a[g * 16 + c], a[g * 16 + c + 1]), pair(a[(g + 8) * 16 + c], a[(g + 8) * 16 + c + 1]),
      pair(a[g * 16 + c + 8], a[g * 16 + c + 9]), pair(a[(g + 8) * 16 + c + 8], a[(g + 8) * 16 + c + 9])};
  const uint32_t b_hand[2] = {pair(b[c * 8 + g], b[(c + 1) * 8 + g]), pair(b[(c + 8) * 8 + g], b[(c + 9) * 8 + g])};
  for (float& sum : sums) sum = 1;
  MmaM16N8K16<Elem>(sums, a_hand, b_hand);
  for (int r = 0; r < 4; ++r) d[128 + (g + r / 2 * 8) * 8 + c + r % 2] = sums[r];
}

template <class Elem>
void CheckTile() {
  std::vector<Elem> a(256), b(128), b_t(128);
  for (int i = 0; i < 256; ++i) a[i] = Elem(static_cast<float>(i * 7 % 19 - 9));
  for (int i = 0; i < 128; ++i) b_t[i % 8 * 16 + i / 8] = b[i] = Elem(static_cast<float>(i * 5 % 23 - 11));
  DeviceArray<Elem> da(a), db(b), db_t(b_t);
  DeviceArray<float> d(256);
  DeviceArray<int> agree(std::vector<int>{1});
  ASSERT_EQ(Launch({.grid = 1, .block = 32}, OneTile<Elem>, da.get(), db.get(), db_t.get(), d.get(), agree.get()),
            cudaSuccess);
  const std::vector<float> got = d.Read();
  EXPECT_EQ(agree.Read()[0], 1);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float want = 1;
      for (int k = 0; k < 16; ++k) want += float(a[i * 16 + k]) * float(b[k * 8 + j]);
      EXPECT_EQ(got[i * 8 + j], want) << i << " " << j;
      EXPECT_EQ(got[128 + i * 8 + j], want) << i << " " << j;
    }
  }
}

TEST_F(PtxTest, MatrixProductOfFragments) {
  CheckTile<__nv_bfloat16>();
  CheckTile<__half>();
}

// out[0]: before any wait, out[1]: one group may be under way, out[2]: none.
__global__ void CopyLate(const int* in, int* out) {
  int* shared = DynamicShared<int>();
  CpAsync16(shared, in, true);
  CpAsyncCommit();
  CpAsync16(shared + 4, in + 4, true);
  CpAsync16(shared + 8, in, false);
  CpAsyncCommit();
  out[0] = shared[0];
  CpAsyncWait<1>();
  out[1] = shared[0] * 100 + shared[4];
  CpAsyncWait<0>();
  out[2] = shared[0] * 100 + shared[4] * 10 + shared[8];
}

TEST_F(PtxTest, AsynchronousCopiesLandOnlyWhenWaitedFor) {
  DeviceArray<int> in(std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}), out(3);
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .shared_bytes = 48}, CopyLate, in.get(), out.get()), cudaSuccess);
  EXPECT_EQ(out.Read(), (std::vector<int>{-1, 99, 120}));
}

__global__ void Dependent(int* out, bool waits) {
  if (waits) WaitForPrecedingKernel();
  LaunchDependents();
  *out = 1;
}

TEST_F(PtxDeathTest, ADependentKernelMustWait) {
  DeviceArray<int> out(1);
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .dependent = true}, Dependent, out.get(), true), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 1);
  ASSERT_EQ(Launch({.grid = 1, .block = 1}, Dependent, out.get(), false), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_DEATH(
      {
        (void)Launch({.grid = 1, .block = 1, .dependent = true}, Dependent, out.get(), false);
        cudaDeviceSynchronize();
      },
      "launched as dependent, but no thread called");
}

TEST_F(PtxTest, OnAnA100DependentLaunchesArePlainOnes) {
  SetComputeCapability(8, 0);
  cudaSetDevice(5);  // nothing is known of it yet
  DeviceArray<int> out(1);
  EXPECT_EQ(Launch({.grid = 1, .block = 1, .dependent = true}, Dependent, out.get(), true), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 1);
}

// PTX for an A100 runs on a Hopper, but does not wait there.
TEST_F(PtxTest, CodeForOlderDevicesIsNotLaunchedAsDependent) {
  SetPtxVersion(80);
  cudaSetDevice(6);
  DeviceArray<int> out(1);
  EXPECT_EQ(Launch({.grid = 1, .block = 1, .dependent = true}, Dependent, out.get(), false), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 1);
}

TEST_F(PtxTest, Exp2) {
  EXPECT_EQ(Exp2(3), 8);
  EXPECT_EQ(Exp2(-130), 0);
  EXPECT_EQ(Exp2(-INFINITY), 0);
}

}  // namespace
}  // namespace cuda_emulation
