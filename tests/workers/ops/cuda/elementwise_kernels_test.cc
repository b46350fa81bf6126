// Kernels that treat every element by itself against the CPU's kernels.
#include <limits>

#include "tests/workers/ops/cuda/kernel_testing.h"

namespace switchyard {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class ElementwiseKernelsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, ElementwiseKernelsTest, testing::ValuesIn(kAllDTypes), KernelTestName);

TEST_P(ElementwiseKernelsTest, SwiGlu) {
  for (int64_t width : {40, 7}) {
    Tensor gate = RandomMatrix(dtype(), 5, width, 1, 4.0);
    const Tensor up = RandomMatrix(dtype(), 5, width, 2);
    Set(gate.view(), 0, 0, -1000.0), Set(gate.view(), 0, 1, 1000.0), Set(gate.view(), 0, 2, 0.0);
    Tensor want(dtype(), {5, width});
    SwiGluArgs args = {.dtype = code(),
                       .gate = gate.view().raw(),
                       .up = up.view().raw(),
                       .y = want.view().raw(),
                       .gate_stride = width,
                       .up_stride = width,
                       .y_stride = width,
                       .width = width};
    CpuKernels().swiglu(args, 0, 5);
    for (const MatrixLayout& layout : kLayouts) {
      const DeviceMatrix g = ToDevice(gate.view(), layout), u = ToDevice(up.view(), layout);
      const DeviceMatrix y = PoisonOnDevice(dtype(), 5, width, layout);
      args.gate = g.get(), args.up = u.get(), args.y = y.get();
      args.gate_stride = g.stride(), args.up_stride = u.stride(), args.y_stride = y.stride();
      ASSERT_EQ(cuda::SwiGlu(call(), args, 5), 0);
      ExpectLikeCpu(y.Download().view(), want.view(), /*exact=*/dtype() != DType::kF64, layout.name);
      args.y = g.get(), args.y_stride = g.stride();  // in place
      ASSERT_EQ(cuda::SwiGlu(call(), args, 5), 0);
      EXPECT_TRUE(SameBits(g.Download().view(), 0, y.Download().view())) << layout.name;
    }
  }
}

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
  SwiGluArgs swiglu{};
  ClampArgs clamp{};
  swiglu.dtype = clamp.dtype = code();
  swiglu.width = clamp.width = 8;
  EXPECT_EQ(cuda::SwiGlu(call(), swiglu, 0), 0);
  EXPECT_EQ(cuda::Clamp(call(), clamp, 0), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace switchyard
