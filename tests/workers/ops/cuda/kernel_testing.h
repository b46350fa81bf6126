// Utilities of the tests of row kernels: layouts of rows that a kernel must accept, and comparison with the CPU's
// kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/gpu/gpu_test.h"
#include "tests/workers/ops/cuda/device_array.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/core/kernels.h"

namespace switchyard::ops {

// Rows `pad` elements longer than the matrix is wide, `shift` elements behind an aligned address.
struct MatrixLayout {
  const char* name;
  int64_t pad;
  int64_t shift;
};
inline constexpr MatrixLayout kLayouts[] = {
    {"contiguous", 0, 0}, {"padded", 16, 16}, {"odd stride", 3, 0}, {"shifted", 16, 1}};

inline DeviceMatrix ToDevice(const TensorView& from, const MatrixLayout& layout) {
  return DeviceMatrix(from, from.dim(1) + layout.pad, layout.shift * DTypeBytes(from.dtype()));
}
inline DeviceMatrix PoisonOnDevice(DType dtype, int64_t rows, int64_t width, const MatrixLayout& layout) {
  return DeviceMatrix(dtype, rows, width, width + layout.pad, layout.shift * DTypeBytes(dtype));
}

class KernelTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    SkipWithoutGpu();
    if (!IsSkipped()) call_.emplace();
  }
  DType dtype() const { return GetParam(); }
  DType acc() const { return AccDType(GetParam()); }
  uint8_t code() const { return static_cast<uint8_t>(GetParam()); }
  const CudaCall& call() const { return call_->get(); }

 private:
  std::optional<CudaCallForTest> call_;
};

inline std::string KernelTestName(const testing::TestParamInfo<DType>& info) { return DTypeName(info.param); }

// Bit for bit if `exact` and the CPU has fma as GPUs do; else within the tolerance of their dtype.
inline void ExpectLikeCpu(const TensorView& actual, const TensorView& cpu, bool exact, const std::string& where) {
  if (exact && CurrentIsa() != Isa::kScalar) {
    EXPECT_TRUE(SameBits(actual, 0, cpu)) << where;
    return;
  }
  for (int64_t r = 0; r < cpu.dim(0); ++r) {
    ExpectNear(RowOf(actual, r), RowOf(cpu, r), reference::ReductionTolerance(cpu.dtype()),
               where + " row " + std::to_string(r));
  }
}

}  // namespace switchyard::ops
