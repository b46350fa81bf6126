// The runtime API of the emulation: memory, copies, streams, events, errors.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/cuda_emulation/stream_queue.h"
#include "tests/cuda_emulation/test_kernels.h"

namespace cuda_emulation {
namespace {

using switchyard::ops::cuda::Launch;

class RuntimeTest : public EmulationTest {
 protected:
  RuntimeTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&event_), cudaSuccess);
  }
  ~RuntimeTest() override {
    Reset();
    cudaStreamDestroy(stream_);
    cudaStreamDestroy(other_);
    cudaEventDestroy(event_);
  }
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
};
using RuntimeDeathTest = RuntimeTest;

__global__ void Store(int* to, int value) { *to = value; }
__global__ void Add(const int* from, int* to) { *to += *from; }
__global__ void StoreAt(int* to, long long idx) { to[idx] = 1; }

TEST_F(RuntimeTest, NewMemoryIsNaNsAndCapacityIsALimit) {
  SetMemoryCapacity(1 << 20);
  size_t free_bytes = 0, total = 0;
  DeviceArray<float> some(100);
  EXPECT_NE(some.Read()[99], some.Read()[99]);
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  EXPECT_EQ(total, 1u << 20);
  EXPECT_EQ(free_bytes, (1u << 20) - 512);  // 400 bytes, rounded up
  void* pointer = &free_bytes;
  EXPECT_EQ(cudaMalloc(&pointer, 1 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(RuntimeTest, CopiesCheckPointersAndKind) {
  DeviceArray<int> device(std::vector<int>{1, 2, 3, 4});
  int host[4] = {};
  EXPECT_EQ(cudaMemcpy(host, device.get(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device.get(), 17, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.get(), host, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2DAsync(host, 4, device.get(), 8, 8, 2, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2D(host, 4, device.get(), 8, 4, 2, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host[1], 3);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device.get() + 1), cudaErrorInvalidValue);
}

// The purpose of lazy streams: a host that reads or reuses a page-locked buffer too early gets wrong data.
TEST_F(RuntimeTest, WorkRunsOnlyWhenSomebodyWaits) {
  DeviceArray<int> device(std::vector<int>{0});
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  *pinned = 5;
  ASSERT_EQ(cudaMemcpyAsync(device.get(), pinned, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  *pinned = 6;  // too early: the copy sees it
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(device.Read()[0], 6);

  ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = stream_}, Store, device.get(), 7), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, device.get(), 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(*pinned, 6);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(*pinned, 7);

  SetEager(true);
  ASSERT_EQ(cudaMemsetAsync(device.get(), 0, 4, stream_), cudaSuccess);
  EXPECT_EQ(*device.get(), 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeTest, PageableMemoryIsReadAtOnceAndWrittenBeforeTheCallReturns) {
  DeviceArray<int> device(std::vector<int>{0});
  int host = 5;
  ASSERT_EQ(cudaMemcpyAsync(device.get(), &host, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  host = 6;
  int back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, device.get(), 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(back, 5);
}

TEST_F(RuntimeTest, AnEventOrdersTwoStreamsAndItsAbsenceShows) {
  for (bool with_event : {true, false}) {
    DeviceArray<int> from(std::vector<int>{0}), to(std::vector<int>{0});
    ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = stream_}, Store, from.get(), 3), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
    if (with_event) {
      ASSERT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
    }
    ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = other_}, Add, from.get(), to.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    EXPECT_EQ(to.Read()[0], with_event ? 3 : 0);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST_F(RuntimeTest, EventsOfTheLastRecordAndTheirTime) {
  cudaEvent_t end = nullptr;
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);  // never recorded
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event_, end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event_, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(end), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeTest, StreamZeroAndBlockingStreamsWaitForEachOther) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  DeviceArray<int> from(std::vector<int>{0}), to(std::vector<int>{0});
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = blocking}, Store, from.get(), 3), cudaSuccess);
  ASSERT_EQ(Launch({.grid = 1, .block = 1}, Add, from.get(), to.get()), cudaSuccess);
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = blocking}, Add, to.get(), to.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(to.Read()[0], 6);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(RuntimeTest, HostFunctionsRunInOrderAndMayNotCall) {
  struct Seen {
    cudaError_t error = cudaSuccess;
    int* pinned;
    int value = 0;
  } seen;
  ASSERT_EQ(cudaMallocHost(&seen.pinned, 4), cudaSuccess);
  DeviceArray<int> device(std::vector<int>{9});
  ASSERT_EQ(cudaMemcpyAsync(seen.pinned, device.get(), 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream_,
                [](void* argument) {
                  auto* s = static_cast<Seen*>(argument);
                  s->value = *s->pinned;
                  void* pointer = nullptr;
                  s->error = cudaMalloc(&pointer, 4);
                },
                &seen),
            cudaSuccess);
  EXPECT_EQ(seen.value, 0);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(seen.value, 9);
  EXPECT_EQ(seen.error, cudaErrorNotPermitted);
  cudaFreeHost(seen.pinned);
}

// Two ranks with two streams each, where rank 0 waits for its first stream and rank 1 for its second: as on devices,
// all four meet.
TEST_F(RuntimeTest, PatientWorkOfOneStreamLetsTheOthersGoOn) {
  std::atomic<int> arrived[2] = {0, 0};
  auto rank = [&](int device, int waits_for) {
    cudaSetDevice(device);
    cudaStream_t streams[2];
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
      ASSERT_EQ(
          EnqueuePatient(streams[i], "meet",
                         [&arrived, i, here = false](std::chrono::microseconds) mutable -> std::optional<cudaError_t> {
                           if (!here) ++arrived[i];
                           here = true;
                           NotifyProgress();
                           return arrived[i] == 2 ? std::optional(cudaSuccess) : std::nullopt;
                         }),
          cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(streams[waits_for]), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  };
  std::thread first(rank, 0, 0), second(rank, 1, 1);
  first.join();
  second.join();
  EXPECT_EQ(arrived[0], 2);
  EXPECT_EQ(arrived[1], 2);
}

TEST_F(RuntimeTest, RanksRunAtOnce) {
  std::vector<std::thread> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.emplace_back([r] {
      cudaSetDevice(r);
      DeviceArray<int> one(std::vector<int>{1}), sum(std::vector<int>{0});
      for (int i = 0; i < 200; ++i) ASSERT_EQ(Launch({.grid = 1, .block = 1}, Add, one.get(), sum.get()), cudaSuccess);
      EXPECT_EQ(sum.Read()[0], 200);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(RuntimeTest, LaunchesAreChecked) {
  DeviceArray<int> out(1);
  EXPECT_EQ(Launch({.grid = 0, .block = 1}, Store, out.get(), 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch({.grid = 1, .block = 1025}, Store, out.get(), 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch({.grid = {1, 65536}, .block = 1}, Store, out.get(), 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch({.grid = 1, .block = 1, .shared_bytes = 232449}, Store, out.get(), 1), cudaErrorInvalidValue);
  EXPECT_EQ(Launch({.grid = 1, .block = 1, .shared_bytes = 232448}, Store, out.get(), 1), cudaSuccess);
  cudaLaunchConfig_t plain = {};
  plain.gridDim = plain.blockDim = dim3(1);
  plain.dynamicSmemBytes = 48 << 10;  // with any static shared memory too much
  EXPECT_EQ(cudaLaunchKernelEx(&plain, Add, out.get(), out.get()), cudaErrorInvalidValue);
  cudaSetDevice(1);
  EXPECT_EQ(Launch({.grid = 1, .block = 1, .stream = stream_}, Store, out.get(), 1), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeTest, AnIllegalAddressBreaksTheDeviceForGood) {
  DeviceArray<int> out(64);
  ASSERT_EQ(Launch({.grid = 1, .block = 1}, StoreAt, out.get(), 64LL), cudaSuccess);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("StoreAt(int*, long long), block (0, 0, 0), thread (0, 0, 0)"), std::string::npos) << text;
  EXPECT_NE(text.find("0 bytes past the end of 256 bytes of device 0"), std::string::npos) << text;
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  cudaSetDevice(1);  // another device works
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  cudaSetDevice(0);
  Reset();
}

TEST_F(RuntimeTest, AHostPointerGivenToAKernelIsAnError) {
  int host = 0;
  ASSERT_EQ(Launch({.grid = 1, .block = 1}, Store, &host, 1), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(host, 0);
}

TEST_F(RuntimeTest, FreedMemoryIsInaccessible) {
  int* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  cudaFree(pointer);
  EXPECT_DEATH(*pointer = 1, "in freed 4 bytes of device 0");
}

TEST_F(RuntimeDeathTest, WritesBehindAnAllocationAreFoundWhenItIsFreed) {
  EXPECT_DEATH(
      {
        char* pointer = nullptr;
        cudaMalloc(&pointer, 100);
        pointer[101] = 0;
        cudaFree(pointer);
      },
      "1 bytes past the end of 100 bytes of device 0");
}

TEST_F(RuntimeTest, InjectedErrors) {
  FailAt("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);

  DeviceArray<int> out(std::vector<int>{0});
  FailAt("kernel", 2, cudaErrorECCUncorrectable);
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = stream_}, Store, out.get(), i), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaErrorECCUncorrectable);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable");
  Reset();
  EXPECT_EQ(out.Read()[0], 1);
}

}  // namespace
}  // namespace cuda_emulation
