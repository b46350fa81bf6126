// The CUDA backend where a machine has several devices, where the driver is too old, and where memory is pinned.
#include "workers/tensor/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/devices/test_device.h"
#include "workers/ops/activation/clamp.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CudaBackendTest : public testing::Test {
 protected:
  CudaBackendTest() { (void)TestDevice(); }  // registers the backend
  ~CudaBackendTest() override {
    cuda_emulation::Reset();
    (void)cudaSetDevice(0);
  }
};

// Another device is current at each call: a thread may serve several, and a new thread begins with device 0.
TEST_F(CudaBackendTest, EveryCallOfAQueueSetsItsDevice) {
  auto queue = CudaBackend()->NewQueue(1, {});
  ASSERT_TRUE(queue.ok()) << queue.status();
  DeviceQueue& on_one = **queue;
  const auto memory = Tensor::Allocate(DType::kF32, {4, 16}, Device::Cuda(1));
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::unique_ptr<DeviceEvent> event;
  std::unique_ptr<DeviceGraph> graph;
  const auto later = [] { return absl::Now() + absl::Seconds(20); };
  const std::vector<std::pair<std::string, std::function<absl::Status()>>> calls = {
      {"Workspace", [&] { return on_one.Workspace(ops::kCudaWorkspaceBytes).status(); }},
      {"Fill", [&] { return on_one.Fill(memory->view().raw(), 0, 256); }},
      {"Copy", [&] { return on_one.Copy(memory->view().raw(), memory->view().raw(), 256); }},
      {"Record",
       [&] {
         auto recorded = on_one.Record();
         if (recorded.ok()) event = *std::move(recorded);
         return recorded.status();
       }},
      {"WaitFor", [&] { return on_one.WaitFor(*event); }},
      {"WaitOnHost", [&] { return on_one.WaitOnHost(*event, later()); }},
      {"Synchronize", [&] { return on_one.Synchronize(later()); }},
      {"IsLost", [&] { return on_one.IsLost() ? absl::InternalError("lost") : absl::OkStatus(); }},
      {"BeginRecording", [&] { return on_one.BeginRecording(); }},
      {"an op", [&] { return ops::Clamp(Stream::On(&on_one, nullptr), 1.0, memory->view()); }},
      {"EndRecording",
       [&] {
         auto ended = on_one.EndRecording();
         if (ended.ok()) graph = *std::move(ended);
         return ended.status();
       }},
      {"Run", [&] { return on_one.Run(graph.get()); }},
      {"the end", [&] { return queue->reset(), absl::OkStatus(); }},
  };
  for (const auto& [name, call] : calls) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const absl::Status status = call();
    EXPECT_TRUE(status.ok()) << name << ": " << status;
    int device = -1;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 1) << name;
  }
}

TEST_F(CudaBackendTest, ADriverThatIsTooOldIsNamedWithBothVersions) {
  cuda_emulation::SetDriverVersion(12020);
  EXPECT_EQ(CudaBackend()->NumDevices(), 0);
  const absl::Status status = CudaBackend()->Describe(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no device cuda:0: the driver is too old: it runs CUDA 12.2, this program was built with "
                              "CUDA 13.0; update the driver"),
                    HasSubstr("deploy/install-deps.sh --cuda=12")));
  cuda_emulation::SetDriverVersion(11080);
  EXPECT_THAT(std::string(CudaBackend()->Describe(0).status().message()),
              AllOf(HasSubstr("it runs CUDA 11.8"), Not(HasSubstr("--cuda=12"))));
  // Without any driver the runtime's error is the same.
  cuda_emulation::SetDriverVersion(0);
  EXPECT_EQ(CudaBackend()->Describe(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(CudaBackend()->Describe(0).status().message()), HasSubstr("is the driver installed?"));
  cuda_emulation::SetDriverVersion(13000);
  EXPECT_TRUE(CudaBackend()->Describe(0).ok());
}

TEST_F(CudaBackendTest, MemoryIsPinnedAsReadOnlyWhereThatCanBe) {
  std::vector<char> memory(4096);
  const auto pin = [&] { return CudaBackend()->Pin(1, memory.data(), static_cast<int64_t>(memory.size())); };
  {
    const auto pinned = pin();
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_TRUE((*pinned)->read_only());
  }
  cuda_emulation::FailAt("cudaHostRegister", 1, cudaErrorNotSupported);  // this mapping not
  {
    const auto pinned = pin();
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_FALSE((*pinned)->read_only());
  }
  cuda_emulation::SetRegistersReadOnly(false);  // the device not
  {
    const auto pinned = pin();
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_FALSE((*pinned)->read_only());
  }
  cuda_emulation::FailAt("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(pin().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace switchyard
