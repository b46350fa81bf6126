// What blocks in NCCL: a launch, which an abort ends; an abort, while recorded graphs hold collectives, for which
// nobody else may have to wait.
#include "workers/comm/nccl/nccl_handle.h"

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
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
    const absl::Status connected = handle_->Connect("connecting", test::Soon());
    ASSERT_TRUE(connected.ok()) << connected;
    EXPECT_EQ(nccl_emulation::NumLive(), 2);
    handle_->DropScaffold();
    EXPECT_EQ(nccl_emulation::NumLive(), 1);
    recorded_ = Record();
    ASSERT_NE(recorded_, nullptr);
  }
  ~NcclHandleTest() override {
    handle_.reset();
    EXPECT_EQ(nccl_emulation::NumLive(), 0);
    nccl_emulation::Reset();
    cuda_emulation::Reset();
  }

  ncclResult_t Sum(ncclComm_t comm) {
    return ncclAllReduce(sum_.raw(), sum_.raw(), 8, ncclFloat32, ncclSum, comm,
                         static_cast<cudaStream_t>(memory_.queue().handle()));
  }
  absl::Status LaunchSum() {
    return handle_->Launch([&](ncclComm_t comm) { return Sum(comm); });
  }

  // A graph with a sum in it.
  std::unique_ptr<DeviceGraph> Record() {
    EXPECT_TRUE(memory_.queue().BeginRecording().ok());
    const absl::Status launched = LaunchSum();
    EXPECT_TRUE(launched.ok()) << launched;
    auto graph = memory_.queue().EndRecording();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : nullptr;
  }

  test::DeviceMemory memory_{0};
  const TensorView sum_ = memory_.Make(DType::kF32, 8);
  std::unique_ptr<NcclHandle> handle_;
  std::unique_ptr<DeviceGraph> recorded_;
};

// The owner of the graphs reads the communicator's state before it destroys them; if it had to wait for the abort, both
// would wait for ever.
TEST_F(NcclHandleTest, AnAbortThatWaitsForGraphsBlocksNobodyElse) {
  std::thread watchdog([&] { handle_->Abort(); });
  absl::Status seen;
  while (seen.ok()) seen = handle_->Idle().status();
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

// The launcher blocks without a lock: the state can be looked at, and an abort by another thread frees it.
TEST_F(NcclHandleTest, AnAbortFreesALaunchThatBlocks) {
  recorded_.reset();
  nccl_emulation::HangLaunch(/*rank=*/0, 1);
  absl::Status launched;
  std::thread launcher([&] { launched = LaunchSum(); });
  for (int look = 0; look < 100; ++look) {  // NCCL's own state is not, while it launches: the emulation would end here
    EXPECT_TRUE(handle_->Idle().ok());
    absl::SleepFor(absl::Milliseconds(1));
  }
  handle_->Abort();
  launcher.join();
  EXPECT_EQ(launched.code(), absl::StatusCode::kUnavailable) << launched;
  EXPECT_EQ(nccl_emulation::NumLive(), 0);
  EXPECT_EQ(LaunchSum(), launched);
}

// A launcher that the machine does not run for a while: the emulation would end here if the communicator were gone.
TEST_F(NcclHandleTest, AnAbortWaitsForALaunchThatIsSlow) {
  recorded_.reset();
  absl::Notification launching;
  absl::Status launched;
  std::thread launcher([&] {
    launched = handle_->Launch([&](ncclComm_t comm) {
      launching.Notify();
      absl::SleepFor(absl::Milliseconds(300));
      return Sum(comm);
    });
  });
  launching.WaitForNotification();
  handle_->Abort();
  launcher.join();
  EXPECT_EQ(launched.code(), absl::StatusCode::kUnavailable) << launched;
  EXPECT_EQ(nccl_emulation::NumLive(), 0);
}

TEST_F(NcclHandleTest, OnlyANonBlockingLaunchStartsAThread) {
  const int before = nccl_emulation::NumLaunchThreads();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(LaunchSum().ok());
  EXPECT_EQ(nccl_emulation::NumLaunchThreads(), before);
  recorded_.reset();
  handle_.reset();

  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  const auto await_done = [&] {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclSuccess);
  };
  await_done();
  EXPECT_EQ(Sum(comm), ncclInProgress);
  await_done();
  EXPECT_EQ(nccl_emulation::NumLaunchThreads(), before + 1);
  EXPECT_TRUE(memory_.queue().Synchronize(test::Soon()).ok());
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

}  // namespace
}  // namespace switchyard::comm
