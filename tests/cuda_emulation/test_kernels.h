// What the emulation's tests share.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "workers/ops/cuda/launch_cuda.h"

namespace cuda_emulation {

// Each test begins and ends with the settings as at start.
class EmulationTest : public testing::Test {
 protected:
  EmulationTest() {
    Reset();
    cudaSetDevice(0);
    cudaGetLastError();
  }
  ~EmulationTest() override { Reset(); }
};

// An array on the device.
template <class Elem>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&elements_, size * sizeof(Elem)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<Elem>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(elements_, values.data(), size_ * sizeof(Elem), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(elements_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  Elem* get() const { return elements_; }
  size_t bytes() const { return size_ * sizeof(Elem); }
  std::vector<Elem> Read() const {
    std::vector<Elem> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), elements_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  Elem* elements_ = nullptr;
  size_t size_;
};

}  // namespace cuda_emulation
