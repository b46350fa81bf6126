// The end of an NCCL communicator with collectives in recorded graphs: NCCL waits for the graphs, and other threads
// must not wait for NCCL.
#include "workers/comm/nccl/nccl_handle.h"

#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/nccl_control.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/nccl_test_util.h"

namespace switchyard::comm {
namespace {

using test::DeviceMemory;
using test::Soon;

class NcclHandleTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto id = NcclHandle::NewId();
    ASSERT_TRUE(id.ok()) << id.status();
    auto handle = NcclHandle::Begin(/*device=*/0, /*rank=*/0, /*world=*/1, *id);
    ASSERT_TRUE(handle.ok()) << handle.status();
    handle_ = *std::move(handle);
    ASSERT_TRUE(handle_->AwaitFinalized("connecting", test::Soon()).ok());
    recorded_ = Record();
    ASSERT_NE(recorded_, nullptr);
  }
  ~NcclHandleTest() override {
    EXPECT_EQ(nccl_emulation::NumLive(), 0);
    cuda_emulation::Reset();
  }

  // A graph with a sum in it.
  std::unique_ptr<DeviceGraph> Record() {
    const TensorView sum = memory_.Make(DType::kF32, 8);
    EXPECT_TRUE(memory_.queue().BeginRecording().ok());
    const absl::Status launched = handle_->Launch([&](ncclComm_t comm) {
      return ncclAllReduce(sum.raw(), sum.raw(), 8, ncclFloat32, ncclSum, comm,
                           static_cast<cudaStream_t>(memory_.queue().handle()));
    });
    EXPECT_TRUE(launched.ok()) << launched;
    EXPECT_TRUE(handle_->AwaitFinalized("the launch", test::Soon()).ok());
    auto graph = memory_.queue().EndRecording();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : nullptr;
  }

  test::DeviceMemory memory_{0};
  std::unique_ptr<NcclHandle> handle_;
  std::unique_ptr<DeviceGraph> recorded_;
};

// The owner of the graphs reads the communicator's state before it destroys them; if it had to wait for the abort, both
// would wait for ever.
TEST_F(NcclHandleTest, AnAbortThatWaitsForGraphsBlocksNobodyElse) {
  std::thread watchdog([&] { handle_->Abort(); });
  absl::Status seen;
  while (seen.ok()) seen = handle_->AwaitFinalized("the next launch", test::Soon());
  EXPECT_EQ(seen.code(), absl::StatusCode::kUnavailable) << seen;
  EXPECT_EQ(handle_->Launch([](ncclComm_t) { return ncclSuccess; }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(nccl_emulation::NumLive(), 1) << "the abort is not over as long as a graph holds the communicator";
  recorded_.reset();
  watchdog.join();
}

// A graph that runs when it is destroyed holds the communicator until it has run.
TEST_F(NcclHandleTest, AnAbortWaitsForAGraphThatRuns) {
  ASSERT_TRUE(memory_.queue().Run(recorded_.get()).ok());
  recorded_.reset();
  handle_->Abort();
  EXPECT_EQ(nccl_emulation::NumLive(), 0);
}

TEST_F(NcclHandleTest, WhatAGraphHoldsDoesNotEndInOrder) {
  const absl::Status closed = handle_->Close(absl::Now() + absl::Milliseconds(20));
  EXPECT_EQ(closed.code(), absl::StatusCode::kDeadlineExceeded) << closed;
  recorded_.reset();
  EXPECT_TRUE(handle_->AwaitFinalized("the end", test::Soon()).ok());
  handle_->Abort();
}

TEST_F(NcclHandleTest, EndsInOrderWithoutGraphs) {
  recorded_.reset();
  EXPECT_TRUE(handle_->Close(test::Soon()).ok());
  EXPECT_EQ(handle_->Finalized().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace switchyard::comm
