// Capture and graphs.
#include <set>

#include "tests/cuda_emulation/test_kernels.h"

namespace cuda_emulation {
namespace {

using switchyard::ops::cuda::Launch;

class GraphTest : public EmulationTest {
 protected:
  GraphTest() {
    for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events_) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~GraphTest() override {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void Begin() { ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  cudaError_t End() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(streams_[0], &graph);
    EXPECT_EQ(graph == nullptr, error != cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    return error;
  }
  cudaStream_t streams_[2] = {};
  cudaEvent_t events_[2] = {};
  cudaGraphExec_t exec_ = nullptr;
};

__global__ void Append(int* list, int* size, int value) { list[(*size)++] = value; }

TEST_F(GraphTest, ReplaysWhatWasCapturedAndRunsNothingBefore) {
  DeviceArray<int> list(std::vector<int>(6, 0)), size(std::vector<int>{0});
  Begin();
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = streams_[0]}, Append, list.get(), size.get(), 1), cudaSuccess);
  ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = streams_[0]}, Append, list.get(), size.get(), 2), cudaSuccess);
  cudaStreamCaptureStatus status;
  ASSERT_EQ(cudaStreamIsCapturing(streams_[0], &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(End(), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(size.Read()[0], 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec_, streams_[1]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(streams_[1]), cudaSuccess);
  EXPECT_EQ(list.Read(), (std::vector<int>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess);
}

// 1 and 2 run on two streams, 3 after both.
TEST_F(GraphTest, BranchesRunInAnyOrderAndJoinsWait) {
  DeviceArray<int> list(std::vector<int>(3, 0)), size(std::vector<int>{0});
  auto append = [&](int stream, int value) {
    ASSERT_EQ(Launch({.grid = 1, .block = 1, .stream = streams_[stream]}, Append, list.get(), size.get(), value),
              cudaSuccess);
  };
  Begin();
  ASSERT_EQ(cudaEventRecord(events_[0], streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[1], events_[0], 0), cudaSuccess);
  append(0, 1);
  append(1, 2);
  ASSERT_EQ(cudaEventRecord(events_[1], streams_[1]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[0], events_[1], 0), cudaSuccess);
  append(0, 3);
  ASSERT_EQ(End(), cudaSuccess);
  std::set<std::vector<int>> seen;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    SetSeed(seed);
    ASSERT_EQ(cudaMemset(size.get(), 0, sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec_, streams_[0]), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    seen.insert(list.Read());
  }
  EXPECT_EQ(seen, (std::set<std::vector<int>>{{1, 2, 3}, {2, 1, 3}}));
  EXPECT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess);
}

TEST_F(GraphTest, WhatCaptureForbidsInvalidatesIt) {
  DeviceArray<int> some(4);
  void* pointer = nullptr;
  int host = 0;
  Begin();
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaMemsetAsync(some.get(), 0, 4, streams_[0]), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaMemcpyAsync(some.get(), &host, 4, cudaMemcpyHostToDevice, streams_[0]),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  Begin();  // an event from outside
  EXPECT_EQ(cudaEventRecord(events_[0], streams_[1]), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[0], 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  Begin();  // a stream that does not come back
  EXPECT_EQ(cudaEventRecord(events_[0], streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[1], events_[0], 0), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaMemsetAsync(some.get(), 0, 4, streams_[1]), cudaSuccess);
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  cudaGetLastError();
}

}  // namespace
}  // namespace cuda_emulation
