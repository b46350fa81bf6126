// Kernels of few bits by sums of four products of bytes (vpdpbusd) have the bits of those by products of 16 bits: with
// AVX2 in its place on every machine, and with the instruction where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops {
namespace avx2_dot {
extern const IntGemmKernels kIntGemmKernels;
}  // namespace avx2_dot
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kQ8_0,
                                     WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kMxfp4,
                                     WeightFormat::kQ6_K};
struct Kernels {
  const char* name;
  const IntGemmKernels* kernels;
  bool here;
};

// [rows, 32] of the weight's first panel, in blocks of at most `most` rows.
std::vector<float> Product(const GemmKernel& kernel, const Tensor& x, const Weight& w, int64_t most) {
  const int64_t padded_k = w.padded_k();
  std::vector<float> product;
  for (int64_t row = 0; row < x.dim(0); row += most) {
    const int64_t rows = std::min(most, x.dim(0) - row);
    const Tensor a(DType::kU8, {rows * kernel.ARowBytes(padded_k)});
    kernel.pack({.x = x.view().Rows(row, rows).raw(),
                 .x_stride = x.dim(1),
                 .rows = rows,
                 .k = x.dim(1),
                 .padded_k = padded_k,
                 .a = a.view().raw()});
    alignas(64) float c[kGemmMaxRows * kGemmPanel];
    kernel.block({.a = a.view().raw(), .rows = rows, .b = w.data(), .padded_k = padded_k, .c = c});
    product.insert(product.end(), c, c + rows * kGemmPanel);
  }
  return product;
}

class ByteDotTest : public testing::TestWithParam<Kernels> {};

TEST_P(ByteDotTest, BitsAreThoseOf16BitProducts) {
  if (DetectedIsa() < Isa::kAvx2 || !GetParam().here) GTEST_SKIP() << "not on this processor";
  for (const WeightFormat format : kFormats) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const int64_t k : {5, 20, 28, 32, 96, 1000}) {
        const Tensor rows = RandomMatrix(DType::kF32, 32, k, 1);
        Weight w({.n = 32, .k = k, .dtype = dtype, .format = format});
        ASSERT_TRUE(w.PackRows(0, rows).ok());
        const int row = static_cast<int>(format) - 1, column = static_cast<int>(dtype);
        const GemmKernel& kernel = (*GetParam().kernels)[row][column];
        Tensor x = RandomMatrix(dtype, kernel.max_rows, k, 2);
        for (int64_t i = 0; i < std::min<int64_t>(k, 40); ++i) SetElement(x, 0, i, i % 2 == 0 ? 1 : -1);  // the ends
        for (int64_t i = 0; i < k; ++i) {
          SetElement(x, 1, i, 0);                                             // a row of zeros
          if (i % 64 < 32) SetElement(x, 2, i, GetElement(x, 2, i) * 1e-33);  // groups too small for a scale
        }
        const std::vector<float> want = Product(avx2::kIntGemmKernels[row][column], x, w, 1);
        for (int64_t most = 1; most <= kernel.max_rows; ++most) {
          const std::vector<float> got = Product(kernel, x, w, most);
          ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
              << w.desc().ToString() << ", blocks of " << most << " rows";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Instructions, ByteDotTest,
                         testing::Values(Kernels{"avx2", &avx2_dot::kIntGemmKernels, true},
                                         Kernels{"avx_vnni", &avx_vnni::kIntGemmKernels, HasByteDot(Isa::kAvx2)},
                                         Kernels{"avx512_vnni", &avx512_vnni::kIntGemmKernels,
                                                 HasByteDot(Isa::kAvx512)}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace switchyard::ops
