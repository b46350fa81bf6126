#include "workers/ops/gemm/gemm_choice_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "workers/ops/gemm/cublas_refusals.h"

namespace switchyard::ops {
namespace {

CudaGemmDesc Dense(int64_t m, int64_t n, int64_t k) { return {.m = m, .n = n, .k = k}; }
CudaGemmDesc Grouped(int64_t m, int64_t n, int64_t k, int64_t experts) {
  return {.m = m, .n = n, .k = k, .experts = experts};
}
CudaGemmDesc Deterministic(CudaGemmDesc desc) {
  desc.deterministic = true;
  return desc;
}
CudaGemmDesc Gated(CudaGemmDesc desc) {
  desc.gated = true;
  return desc;
}
CudaGemmDesc Of(uint8_t dtype, CudaGemmDesc desc) {
  desc.dtype = dtype;
  return desc;
}

CudaGemmDesc OnHopper(CudaGemmDesc desc) {
  desc.wgmma = true;
  return desc;
}

// An sm_86, sm_89 or sm_120.
constexpr int64_t kSmallShared = 99 << 10;
CudaGemmDesc InSmallShared(CudaGemmDesc desc) {
  desc.shared_bytes = kSmallShared;
  return desc;
}

CudaGemmConfig Choose(const CudaGemmDesc& desc) { return desc.experts == 0 ? ChooseDense(desc) : ChooseGrouped(desc); }

std::string Print(const CudaGemmConfig& config) {
  std::ostringstream out;
  out << config;
  return out.str();
}

// The beginning of what is printed.
void ExpectChoice(const CudaGemmDesc& desc, const std::string& want) {
  const std::string printed = Print(Choose(desc));
  EXPECT_EQ(printed.substr(0, printed.find(';')), want) << desc << ": " << printed;
}

TEST(GemmChoiceTest, TableOfShapes) {
  // Qwen3-30B-A3B, one token: gate and up of 8 experts, down, o, router, qkv.
  ExpectChoice(Gated(Grouped(8, 1536, 2048, 128)), "stream64x8 on 192 CTAs");
  ExpectChoice(Grouped(8, 2048, 768, 128), "stream64x8 on 256 CTAs");
  ExpectChoice(Dense(1, 2048, 4096), "stream16x8_split4 on 128 CTAs");
  ExpectChoice(Dense(1, 128, 2048), "stream16x8_split4 on 8 CTAs");
  ExpectChoice(Deterministic(Dense(1, 2048, 4096)), "stream16x8 on 128 CTAs");
  ExpectChoice(Dense(1, 151936, 2048), "stream64x8 on 264 CTAs");
  // 32 tokens: 2 rows an expert on average; of the dense ones, cuBLASLt has those that are not deterministic.
  ExpectChoice(Gated(Grouped(256, 1536, 2048, 128)), "stream64x8 on 264 CTAs");
  ExpectChoice(Dense(32, 2048, 4096), "cublaslt");
  ExpectChoice(Deterministic(Dense(32, 2048, 4096)), "stream16x32 on 256 CTAs");
  ExpectChoice(Deterministic(Dense(32, 151936, 2048)), "stream64x32 on 264 CTAs");
  // Prefills.
  ExpectChoice(Gated(Grouped(8 * 256, 1536, 2048, 128)), "stream64x32 on 264 CTAs");
  ExpectChoice(Gated(Grouped(8 * 512, 1536, 2048, 128)), "tiles128x64 on 264 CTAs");
  ExpectChoice(Gated(Grouped(8 * 4096, 1536, 2048, 128)), "tiles128x128 on 264 CTAs");
  ExpectChoice(Deterministic(Dense(4096, 5120, 2048)), "tiles128x128 on 264 CTAs");
  ExpectChoice(Gated(Dense(4096, 5120, 2048)), "tiles128x128 on 264 CTAs");
  ExpectChoice(Dense(4096, 5120, 2048), "cublaslt");
  // The same with wgmma: from some rows an expert on, where bits may depend on the shape.
  ExpectChoice(OnHopper(Gated(Grouped(8 * 256, 1536, 2048, 128))), "stream64x32 on 264 CTAs");
  ExpectChoice(OnHopper(Gated(Grouped(8 * 512, 1536, 2048, 128))), "wgmma256x192 on 132 CTAs");
  ExpectChoice(OnHopper(Grouped(8 * 4096, 2048, 768, 128)), "wgmma256x192 on 132 CTAs");
  ExpectChoice(OnHopper(Deterministic(Gated(Grouped(8 * 4096, 1536, 2048, 128)))), "tiles128x128 on 264 CTAs");
  ExpectChoice(OnHopper(Gated(Dense(24, 512, 2048))), "stream16x32 on 32 CTAs");
  ExpectChoice(OnHopper(Gated(Dense(25, 512, 2048))), "wgmma256x192 on 2 CTAs");
  ExpectChoice(OnHopper(Dense(4096, 5120, 2048)), "cublaslt");
  ExpectChoice(OnHopper(Of(kCudaF32, Deterministic(Dense(1, 64, 64)))), "plain on 4 CTAs");
  // With 99 KB of shared memory a block: the larger tiles have no room.
  ExpectChoice(InSmallShared(Dense(1, 2048, 4096)), "stream16x8_split4 on 128 CTAs");
  ExpectChoice(InSmallShared(Gated(Grouped(8, 1536, 2048, 128))), "stream64x8 on 192 CTAs");
  ExpectChoice(InSmallShared(Deterministic(Dense(16, 151936, 2048))), "stream64x8 on 264 CTAs");
  ExpectChoice(InSmallShared(Deterministic(Dense(4096, 5120, 2048))), "stream64x32 on 264 CTAs");
  ExpectChoice(InSmallShared(Gated(Grouped(8 * 4096, 1536, 2048, 128))), "stream16x32 on 396 CTAs");
  ExpectChoice(InSmallShared(Grouped(64, 128, 128, 1 << 13)), "plain on 512 CTAs");
  // What the tensor cores do not take.
  ExpectChoice(Of(kCudaF32, Dense(1, 64, 64)), "cublaslt");
  ExpectChoice(Of(kCudaF32, Deterministic(Dense(1, 64, 64))), "plain on 4 CTAs");
  ExpectChoice(Of(kCudaF64, Grouped(20, 64, 64, 4)), "plain on 20 CTAs");
  ExpectChoice(Grouped(20, 64, 63, 4), "plain on 20 CTAs");
}

TEST(GemmChoiceTest, TableOfShapesOfFewBits) {
  const auto expect = [](const CudaGemmDesc& desc, uint8_t format, const std::string& want) {
    std::ostringstream printed;
    printed << ChooseBits(desc, format);
    EXPECT_EQ(printed.str().substr(0, printed.str().find(';')), want) << desc << ": " << printed.str();
  };
  // gpt-oss-20b, one token: gate and up of 4 experts, down, o; and 32 tokens.
  expect(Gated(Grouped(4, 5760, 2880, 32)), kCudaMxfp4, "bits64x8 on 360 CTAs");
  expect(Grouped(4, 2880, 2880, 32), kCudaMxfp4, "bits64x8 on 180 CTAs");
  expect(Dense(1, 2880, 4096), kCudaInt4, "bits16x8_split4 on 180 CTAs");
  expect(Deterministic(Dense(1, 2880, 4096)), kCudaInt4, "bits16x8 on 180 CTAs");
  expect(Dense(32, 2880, 4096), kCudaInt4, "bits16x32 on 360 CTAs");
  expect(Dense(32, 201088, 2880), kCudaInt8, "bits64x32 on 396 CTAs");
  expect(Dense(4096, 5120, 2880), kCudaInt8, "bits64x128 on 264 CTAs");
  // Where fewer CTAs fit an SM.
  expect(Dense(1, 201088, 2880), kCudaQ4_0, "bits64x8 on 396 CTAs");
  expect(Dense(1, 201088, 2880), kCudaQ6_K, "bits64x8 on 264 CTAs");
  expect(InSmallShared(Dense(1, 201088, 2880)), kCudaQ6_K, "bits64x8 on 132 CTAs");
  expect(InSmallShared(Dense(4096, 5120, 2880)), kCudaInt8, "bits64x128 on 132 CTAs");
  // So many experts that the largest has no room, and that none has.
  expect(InSmallShared(Grouped(1 << 14, 512, 512, 1 << 10)), kCudaInt8, "bits64x32 on 132 CTAs");
  expect(InSmallShared(Grouped(64, 128, 128, 1 << 13)), kCudaInt8, "");
}

// Weights' own biases and bounds are neither wgmma's nor the library's.
TEST(GemmChoiceTest, BiasesOfWeightsAreOfOurOwnTiles) {
  CudaGemmDesc many = OnHopper(Gated(Grouped(8 * 4096, 1536, 2048, 128))), dense = Dense(4096, 5120, 2048);
  many.ends_otherwise = dense.ends_otherwise = true;
  ExpectChoice(many, "tiles128x128 on 264 CTAs");
  ExpectChoice(dense, "tiles128x128 on 264 CTAs");
}

// Deterministic: which kind and how many chains depend on dtype and k alone.
TEST(GemmChoiceTest, DeterministicChoicesShareBits) {
  for (uint8_t dtype : {kCudaF32, kCudaF64, kCudaBf16, kCudaF16}) {
    for (int64_t k : {1, 8, 100, 2048}) {
      const CudaGemmKind kind = ChooseDense(Of(dtype, Deterministic(Dense(1, 64, k)))).kind;
      for (int64_t m : {1, 8, 9, 16, 17, 64, 65, 5000}) {
        for (int64_t n : {2, 128, 2048, 100000}) {
          for (int64_t experts : {0, 1, 7, 256}) {
            for (bool gated : {false, true}) {
              CudaGemmDesc desc = Of(dtype, Deterministic(Grouped(m, n, k, experts)));
              desc.gated = gated;
              desc.wgmma = m % 2 == 0;
              if (m % 3 == 0) desc.shared_bytes = kSmallShared;
              const CudaGemmConfig config = Choose(desc);
              ASSERT_EQ(config.kind, kind) << desc << ": " << config;
              if (kind == CudaGemmKind::kTiles) {
                ASSERT_EQ(kCudaGemmTiles[config.tile].warps_k, 1) << desc << ": " << config;
                ASSERT_FALSE(kCudaGemmTiles[config.tile].wgmma) << desc << ": " << config;
              }
            }
          }
        }
      }
    }
  }
}

// Exactly one candidate is chosen, each other has a reason, and the chosen one can run.
TEST(GemmChoiceTest, OneIsChosenAndTheOthersSayWhyNot) {
  for (uint8_t dtype : {kCudaF32, kCudaBf16}) {
    for (int64_t m : {1, 8, 9, 17, 33, 65, 5000}) {
      for (int64_t n : {1, 100, 2048, 100000}) {
        for (int64_t k : {7, 64, 2048}) {
          for (int64_t experts : {0, 1, 16, 128}) {
            for (bool deterministic : {false, true}) {
              CudaGemmDesc desc = Of(dtype, Grouped(m, n, k, experts));
              desc.deterministic = deterministic;
              desc.wgmma = n >= 2048;
              if (n == 100) desc.shared_bytes = kSmallShared;
              const CudaGemmConfig config = Choose(desc);
              int chosen = (config.not_cublas == nullptr) + (config.not_plain == nullptr);
              for (const char* why : config.not_tile) chosen += why == nullptr;
              ASSERT_EQ(chosen, 1) << desc << ": " << config;
              ASSERT_EQ(config.grid > 0, config.kind != CudaGemmKind::kCublasLt) << desc << ": " << config;
              if (config.kind == CudaGemmKind::kTiles) {
                ASSERT_EQ(config.not_tile[config.tile], nullptr);
                ASSERT_LE(CudaGemmSharedBytes(kCudaGemmTiles[config.tile], std::max<int64_t>(experts, 1)),
                          desc.shared_bytes)
                    << desc << ": " << config;
              }
            }
          }
        }
      }
    }
  }
}

TEST(GemmChoiceTest, Prints) {
  std::ostringstream desc;
  desc << Gated(Deterministic(Grouped(8, 1536, 2048, 128)));
  EXPECT_EQ(desc.str(), "bf16 8x1536x2048 over 128 experts gated deterministic on 132 SMs of 227 KB a block");
  desc.str("");
  desc << OnHopper(Dense(1, 2, 3));
  EXPECT_EQ(desc.str(), "bf16 1x2x3 with wgmma on 132 SMs of 227 KB a block");
  EXPECT_EQ(Print(Choose(Of(kCudaF32, Dense(1, 64, 64)))).substr(0, 40), "cublaslt; not plain: the library is fast");
}

TEST(CublasRefusalsTest, AllAreCountedAndTheFirstIsInTheLog) {
  testing::internal::CaptureStderr();
  const int64_t before = NumCublasRefusals();
  CountCublasRefusal({.m = 40, .n = 48, .k = 64});
  CountCublasRefusal({.m = 41, .n = 48, .k = 64});
  EXPECT_EQ(NumCublasRefusals(), before + 2);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("cuBLASLt refuses bf16 40x48x64"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("41x48x64")));
}

}  // namespace
}  // namespace switchyard::ops
