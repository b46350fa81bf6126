// Kernels that treat every element by itself against the CPU's kernels.
#include <limits>

#include "tests/workers/ops/cuda/kernel_testing.h"

namespace switchyard::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class ElementwiseKernelsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, ElementwiseKernelsTest, testing::ValuesIn(kAllDTypes), KernelTestName);

TEST_P(ElementwiseKernelsTest, Clamp) {
  for (int64_t width : {40, 7}) {
    Tensor x = RandomMatrix(dtype(), 3, width, 3, 10.0);
    Set(x.view(), 1, 0, kInf), Set(x.view(), 1, 1, -kInf), Set(x.view(), 1, 2, std::nan(""));
    Tensor want = Copy(x.view());
    ClampArgs args = {.dtype = code(), .x = want.view().raw(), .x_stride = width, .width = width, .limit = 6.0};
    CpuKernels().clamp(args, 0, 3);
    for (const MatrixLayout& layout : kLayouts) {
      const DeviceMatrix in_place = ToDevice(x.view(), layout);
      args.x = in_place.get(), args.x_stride = in_place.stride();
      ASSERT_EQ(cuda::Clamp(call(), args, 3), 0);
      Tensor got = in_place.Download();
      EXPECT_TRUE(std::isnan(Get(got.view(), 1, 2))) << layout.name;
      Set(got.view(), 1, 2, 0.0), Set(want.view(), 1, 2, 0.0);  // which NaN it is, is the device's matter
      EXPECT_TRUE(SameBits(got.view(), 0, want.view())) << layout.name;
    }
  }
}

TEST_P(ElementwiseKernelsTest, NoRows) {
  ClampArgs clamp{};
  clamp.dtype = code();
  clamp.width = 8;
  EXPECT_EQ(cuda::Clamp(call(), clamp, 0), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace switchyard::ops
