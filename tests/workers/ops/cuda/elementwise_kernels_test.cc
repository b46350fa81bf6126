// Kernels that treat every element by itself against the CPU's kernels, and conversions against the CPU's types.
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
    for (const Layout& layout : kLayouts) {
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
    for (const Layout& layout : kLayouts) {
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

TEST_P(ElementwiseKernelsTest, ConvertRoundsAsTheCpuAndPads) {
  const int64_t width = 21;
  Tensor x = RandomMatrix(dtype(), 4, width, 4, 3.0);
  Set(x.view(), 0, 0, kInf), Set(x.view(), 0, 1, -0.0), Set(x.view(), 0, 2, 65520.0), Set(x.view(), 0, 3, 1e-8);
  for (DType to_dtype : kAllDTypes) {
    for (int64_t padded : {width, width + 11}) {
      Tensor want(to_dtype, {4, padded});
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t c = 0; c < padded; ++c) Set(want.view(), r, c, c < width ? Get(x.view(), r, c) : 0.0);
      }
      for (const Layout& layout : kLayouts) {
        const DeviceMatrix from = ToDevice(x.view(), layout), to = PoisonOnDevice(to_dtype, 4, padded, layout);
        const ConvertArgs args = {.from_dtype = code(),
                                  .dtype = static_cast<uint8_t>(to_dtype),
                                  .from = from.get(),
                                  .to = to.get(),
                                  .rows = 4,
                                  .width = width,
                                  .padded = padded,
                                  .from_stride = from.stride(),
                                  .to_stride = to.stride()};
        ASSERT_EQ(cuda::Convert(call(), args), 0);
        EXPECT_TRUE(SameBits(to.Download().view(), 0, want.view())) << DTypeName(to_dtype) << ", " << layout.name;
      }
    }
  }
}

TEST_P(ElementwiseKernelsTest, FindNonFinite) {
  for (int64_t count : {0, 1, 1000}) {
    for (const std::vector<int64_t>& bad : {std::vector<int64_t>{}, {999}, {700, 3, 998}, {0}}) {
      Tensor x = RandomMatrix(dtype(), 1, count, 5);
      int64_t want = -1;
      for (int64_t i : bad) {
        if (i >= count) continue;
        Set(x.view(), 0, i, i % 2 == 0 ? kInf : std::nan(""));
        if (want < 0 || i < want) want = i;
      }
      for (const Layout& layout : kLayouts) {
        const DeviceMatrix from = ToDevice(x.view(), layout);
        const DeviceArray<int64_t> first(1);
        const FindNonFiniteArgs args = {.dtype = code(), .x = from.get(), .count = count, .first = first.get()};
        ASSERT_EQ(cuda::FindNonFinite(call(), args), 0);
        EXPECT_EQ(first.Download()[0], want) << count << " elements, " << layout.name;
      }
    }
  }
}

TEST_P(ElementwiseKernelsTest, NoRows) {
  SwiGluArgs swiglu{};
  ClampArgs clamp{};
  ConvertArgs convert{};
  swiglu.dtype = clamp.dtype = convert.from_dtype = convert.dtype = code();
  swiglu.width = clamp.width = convert.width = convert.padded = 8;
  EXPECT_EQ(cuda::SwiGlu(call(), swiglu, 0), 0);
  EXPECT_EQ(cuda::Clamp(call(), clamp, 0), 0);
  EXPECT_EQ(cuda::Convert(call(), convert), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace switchyard
