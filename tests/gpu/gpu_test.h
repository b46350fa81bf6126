// The beginning of every test on a GPU: without a GPU it is skipped.
//
//   class RmsNormGpuTest : public GpuTest {};      or SkipWithoutGpu() in a SetUp() of one's own
//
// Uses the CUDA runtime that the test is compiled against (with the emulation's there is always a device).  Makes no
// context and no allocation.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace switchyard {

// Devices that this process may use; 0 if the driver is missing or too old.
inline int NumGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// To be called in SetUp(): in a test's body it would skip nothing that follows.
inline void SkipWithoutGpu(int needed = 1) {
  const int count = NumGpus();
  if (count == 0) GTEST_SKIP() << "skipped: no GPU";
  if (count < needed) GTEST_SKIP() << "skipped: needs " << needed << " GPUs, here are " << count;
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override { SkipWithoutGpu(); }
};

}  // namespace switchyard
