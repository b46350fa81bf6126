// The twins of Hopper's warpgroup products: layouts, the swizzle, and what a kernel may not do between call and wait.
#include <cmath>
#include <cstring>

#include "tests/cuda_emulation/test_kernels.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/wgmma_cuda.h"

namespace cuda_emulation {
namespace {

using namespace switchyard::ops::cuda;  // NOLINT: the functions under test

class WgmmaTest : public EmulationTest {};

constexpr int kWeights = 64, kTokens = 192, kDepth = 64, kRowElems = 64;
constexpr int kSharedBytes = (kWeights + kTokens) * kRowElems * 2;

enum class Slip { kNone, kNoWait, kNoWgmmaFence, kNoProxyFence, kEarlyWrite, kTouchedSums, kReadAfterWrongWait };

// By hand: where the hardware looks for element k of a row.
__device__ int At(int row, int k) { return row * kRowElems + ((k / 8) ^ (row % 8)) * 8 + k % 8; }

// One warpgroup: d[w][t] = 0.5 + 2 * sum over k of weights[w][k] * tokens[t][k]; of kNarrow < 192, 2 * sum for
// the first kNarrow tokens.
template <class Elem, int kNarrow>
__global__ void OneProduct(const Elem* weights,  // [64, 64]
                           const Elem* tokens,   // [192, 64]
                           float* d,             // [64, 192]
                           Slip slip) {
  Elem* w = DynamicShared<Elem>();
  Elem* t = w + kWeights * kRowElems;
  for (int i = static_cast<int>(threadIdx.x) * 8; i < (kWeights + kTokens) * kDepth; i += 128 * 8) {
    const int row = i / kDepth;
    CpAsync16(w + At(row, i % kDepth), row < kWeights ? weights + i : tokens + i - kWeights * kDepth, true);
  }
  CpAsyncCommit();
  CpAsyncWait<0>();
  if (slip != Slip::kNoProxyFence) FenceProxyAsync();
  __syncthreads();
  float sum[kTokens / 8][4];
  for (auto& four : sum) {
    for (float& value : four) value = 0.5f;
  }
  if (slip != Slip::kNoWgmmaFence) WgmmaFence();
  for (int again = 0; again < 2; ++again) {
    for (int step = 0; step < kDepth / 16; ++step) {
      const uint64_t a = AdvanceWgmmaDescriptor(MakeWgmmaDescriptor(w), step * 32);
      const uint64_t b = AdvanceWgmmaDescriptor(MakeWgmmaDescriptor(t), step * 32);
      WgmmaM64K16<Elem, kNarrow>(sum, a, b, kNarrow == kTokens || again + step > 0);
    }
    WgmmaCommit();
  }
  if (slip == Slip::kEarlyWrite) t[threadIdx.x * 8] = Elem(3.f);
  if (slip == Slip::kTouchedSums) sum[3][1] = 0;
  if (slip == Slip::kReadAfterWrongWait) WgmmaWait<1>();
  if (slip != Slip::kNoWait && slip != Slip::kReadAfterWrongWait) WgmmaWait<0>();
  WgmmaKeep(sum);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int j = 0; j < kTokens / 8; ++j) {
    for (int v = 0; v < 4; ++v) {
      d[(warp * 16 + lane / 4 + v / 2 * 8) * kTokens + j * 8 + lane % 4 * 2 + v % 2] = sum[j][v];
    }
  }
}

template <class Elem, int kNarrow>
std::vector<float> Run(Slip slip, std::vector<Elem>* weights, std::vector<Elem>* tokens) {
  for (int i = 0; i < kWeights * kDepth; ++i) weights->push_back(Elem(static_cast<float>(i * 7 % 19 - 9)));
  for (int i = 0; i < kTokens * kDepth; ++i) tokens->push_back(Elem(static_cast<float>(i * 5 % 23 - 11)));
  DeviceArray<Elem> w(*weights), t(*tokens);
  DeviceArray<float> d(kWeights * kTokens);
  EXPECT_EQ(Launch({.grid = 1, .block = 128, .shared_bytes = kSharedBytes}, OneProduct<Elem, kNarrow>, w.get(), t.get(),
                   d.get(), slip),
            cudaSuccess);
  if (cudaDeviceSynchronize() != cudaSuccess) return {};
  return d.Read();
}

template <class Elem, int kNarrow>
void CheckProduct() {
  std::vector<Elem> weights, tokens;
  const std::vector<float> got = Run<Elem, kNarrow>(Slip::kNone, &weights, &tokens);
  ASSERT_EQ(got.size(), static_cast<size_t>(kWeights * kTokens));
  for (int w = 0; w < kWeights; ++w) {
    for (int t = 0; t < kTokens; ++t) {
      float dot = 0;
      for (int k = 0; k < kDepth; ++k) dot += float(weights[w * kDepth + k]) * float(tokens[t * kDepth + k]);
      const float want = kNarrow == kTokens ? 0.5f + 2 * dot : t < kNarrow ? 2 * dot : 0.5f;
      ASSERT_EQ(got[w * kTokens + t], want) << w << " " << t;
    }
  }
}

TEST_F(WgmmaTest, Products) {
  CheckProduct<__nv_bfloat16, 64>();
  CheckProduct<__half, 64>();
  CheckProduct<__nv_bfloat16, 128>();
  CheckProduct<__half, 128>();
  CheckProduct<__nv_bfloat16, 192>();
  CheckProduct<__half, 192>();
}

std::vector<float> RunSlip(Slip slip) {
  std::vector<__nv_bfloat16> weights, tokens;
  return Run<__nv_bfloat16, kTokens>(slip, &weights, &tokens);
}

TEST_F(WgmmaTest, SumsAreNotThereBeforeTheWait) {
  for (Slip slip : {Slip::kNoWait, Slip::kReadAfterWrongWait}) {
    const std::vector<float> got = RunSlip(slip);
    ASSERT_EQ(got.size(), static_cast<size_t>(kWeights * kTokens));
    for (float value : got) ASSERT_TRUE(std::isnan(value));
  }
}

class WgmmaSlipTest : public WgmmaTest, public testing::WithParamInterface<std::pair<Slip, const char*>> {};

TEST_P(WgmmaSlipTest, EndsTheKernel) {
  testing::internal::CaptureStderr();
  const std::vector<float> got = RunSlip(GetParam().first);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(got.empty());
  EXPECT_NE(printed.find(GetParam().second), std::string::npos) << printed;
}

INSTANTIATE_TEST_SUITE_P(
    Slips, WgmmaSlipTest,
    testing::Values(std::pair{Slip::kNoWgmmaFence, "no WgmmaFence() since the last wait"},
                    std::pair{Slip::kNoProxyFence, "bytes of cp.async without FenceProxyAsync()"},
                    std::pair{Slip::kEarlyWrite, "an operand changed in shared memory before its product"},
                    std::pair{Slip::kTouchedSums, "sums were written while a product added to them"}));

}  // namespace
}  // namespace cuda_emulation
