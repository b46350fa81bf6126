// Errors that take a device away from the process, and those that do not.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/devices/test_device.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

class LostDeviceTest : public testing::TestWithParam<std::pair<cudaError_t, bool>> {
 protected:
  ~LostDeviceTest() override { cuda_emulation::Reset(); }
};

TEST_P(LostDeviceTest, IsKnownByItsErrors) {
  const auto [error, lost] = GetParam();
  const TestStream stream;
  DeviceQueue& queue = *stream.get().queue();
  const auto memory = Tensor::Allocate(DType::kI32, {4}, TestDevice());
  ASSERT_TRUE(memory.ok());
  EXPECT_FALSE(queue.IsLost());
  cuda_emulation::FailAt("cudaMemsetAsync", 1, error);
  const absl::Status status = FillZero(stream, *memory);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), lost ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal) << status;
  EXPECT_EQ(queue.IsLost(), lost);
  EXPECT_EQ(FillZero(stream, *memory).ok(), !lost) << "an error that is over is over";
}

INSTANTIATE_TEST_SUITE_P(
    Errors, LostDeviceTest,
    testing::Values(std::pair(cudaErrorECCUncorrectable, true), std::pair(cudaErrorNvlinkUncorrectable, true),
                    std::pair(cudaErrorContained, true), std::pair(cudaErrorIllegalAddress, true),
                    std::pair(cudaErrorLaunchTimeout, true), std::pair(cudaErrorAssert, true),
                    std::pair(cudaErrorHardwareStackError, true), std::pair(cudaErrorIllegalInstruction, true),
                    std::pair(cudaErrorMisalignedAddress, true), std::pair(cudaErrorInvalidAddressSpace, true),
                    std::pair(cudaErrorInvalidPc, true), std::pair(cudaErrorLaunchFailure, true),
                    std::pair(cudaErrorTensorMemoryLeak, true), std::pair(cudaErrorMpsClientTerminated, true),
                    std::pair(cudaErrorExternalDevice, true), std::pair(cudaErrorInvalidValue, false),
                    std::pair(cudaErrorLaunchOutOfResources, false)),
    [](const auto& info) { return std::string(cudaGetErrorName(info.param.first)); });

}  // namespace
}  // namespace switchyard
