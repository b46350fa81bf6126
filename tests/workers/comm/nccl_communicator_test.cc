// The NCCL communicator on the emulated NCCL: collectives on device memory, their order by streams, graphs.
#include "workers/comm/nccl/nccl_communicator.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/cuda_emulation/nccl_control.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/nccl_test_util.h"

namespace switchyard::comm {
namespace {

using test::DeviceMemory;
using test::ExpectNcclOk;
using test::Soon;
using testing::HasSubstr;

class NcclCommunicatorTest : public testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, NcclCommunicatorTest, testing::Values(1, 2, 4),
                         [](const auto& i) { return absl::StrCat(i.param); });

TEST_P(NcclCommunicatorTest, SizedExchanges) { test::ExpectNcclOk(world(), test::CheckSizedExchanges); }
TEST_P(NcclCommunicatorTest, OneSidedExchanges) { test::ExpectNcclOk(world(), test::CheckOneSidedExchange); }
TEST_P(NcclCommunicatorTest, SizedGathers) { test::ExpectNcclOk(world(), test::CheckSizedGathers); }
TEST_P(NcclCommunicatorTest, Pairs) { test::ExpectNcclOk(world(), test::CheckPairs); }
TEST_P(NcclCommunicatorTest, Mesh) { test::ExpectNcclOk(world(), test::CheckMesh); }
TEST_P(NcclCommunicatorTest, Sums) { test::ExpectNcclOk(world(), test::CheckExactSums); }

// They use the host group and continue the numbers of its forming.
TEST_P(NcclCommunicatorTest, MessagesAndHostViewsGoThroughTheHostGroup) {
  test::ExpectNcclOk(world(), [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    for (int i = 0; i < 3; ++i) {
      ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
      RETURN_IF_ERROR(barrier->Wait());
      RETURN_IF_ERROR(test::CheckOneSidedExchange(comm, memory));
      test::HostMemory host;
      RETURN_IF_ERROR(test::CheckSizedExchanges(comm, &host));
      RETURN_IF_ERROR(test::CheckExactSums(comm, &host));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, LedgersAgree) {
  auto group = test::FormNccl(world());
  for (const absl::Status& status : test::RunRanks(&group, test::CheckSizedExchanges)) EXPECT_TRUE(status.ok());
  for (const auto& comm : group.ranks) {
    EXPECT_EQ(comm->ledger().num_launched(), 8);
    EXPECT_EQ(comm->ledger().hash(), group.ranks[0]->ledger().hash());
  }
}

// A start returns before anybody else has started, and what the caller's stream holds by then is what is sent.
TEST_P(NcclCommunicatorTest, StartAndWaitDoNotBlockTheHost) {
  auto group = test::FormNccl(world());
  std::vector<TensorView> sums;
  std::vector<std::unique_ptr<Work>> works;
  for (int r = 0; r < world(); ++r) {  // one thread for all ranks
    test::DeviceMemory& memory = *group.memory[r];
    sums.push_back(memory.Make(DType::kI64, 4));
    ASSERT_TRUE(memory.queue().Fill(sums[r].raw(), 1, 32).ok());  // on the stream, not done
    auto work = group.ranks[r]->AllReduceSum({.stream = memory.stream(), .deadline = test::Soon()}, sums[r]);
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_TRUE((*work)->Wait().ok());
    EXPECT_TRUE((*work)->Wait().ok());  // again: the same
    works.push_back(*std::move(work));
  }
  for (int r = 0; r < world(); ++r) {
    EXPECT_TRUE(works[r]->WaitOnHost().ok());
    std::vector<int64_t> got(4);
    ASSERT_TRUE(group.memory[r]->Get(sums[r], got.data()).ok());
    EXPECT_EQ(got, std::vector<int64_t>(4, 0x0101010101010101 * world()));
  }
}

// A step in a graph: sums and exchanges captured once, replayed on new contents.
absl::Status CaptureAndReplay(Communicator* comm, test::DeviceMemory* memory) {
  const TensorView values = memory->Make(DType::kI64, 4);
  const TensorView all = memory->Make(DType::kI64, 4 * comm->world());
  const CommCall call{.stream = memory->stream(), .deadline = test::Soon()};
  RETURN_IF_ERROR(memory->queue().BeginRecording());
  ASSIGN_OR_RETURN(auto sum, comm->AllReduceSum(call, values));
  RETURN_IF_ERROR(sum->Wait());
  EXPECT_EQ(sum->WaitOnHost().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(comm->Fence(call).status().code(), absl::StatusCode::kFailedPrecondition);
  const int64_t bytes = NumBytes(values);
  const std::vector<int64_t> same(static_cast<size_t>(comm->world()), 0), sizes(same.size(), bytes);
  std::vector<int64_t> places;
  for (int r = 0; r < comm->world(); ++r) places.push_back(r * bytes);
  ASSIGN_OR_RETURN(auto exchange, comm->AllToAllSized(call, {values, same, sizes}, {all, places, sizes}));
  RETURN_IF_ERROR(exchange->Wait());
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, memory->queue().EndRecording());
  for (int64_t replay = 1; replay <= 3; ++replay) {
    const std::vector<int64_t> mine(4, replay * (comm->rank() + 1));
    memory->Put(values, mine.data());
    RETURN_IF_ERROR(memory->queue().Run(graph.get()));
    ASSIGN_OR_RETURN(auto fence, comm->Fence(call));
    RETURN_IF_ERROR(fence->WaitOnHost());
    std::vector<int64_t> got(4 * comm->world());
    RETURN_IF_ERROR(memory->Get(all, got.data()));
    const int64_t expected = replay * comm->world() * (comm->world() + 1) / 2;
    EXPECT_EQ(got, std::vector<int64_t>(got.size(), expected)) << "replay " << replay;
    RETURN_IF_ERROR(test::CheckOneSidedExchange(comm, memory));  // and between replays, launched by hand
  }
  return absl::OkStatus();
}

TEST_P(NcclCommunicatorTest, CapturedIntoAGraphAndReplayed) { test::ExpectNcclOk(world(), CaptureAndReplay); }

// As many collectives as a step of a deep model has.
TEST_P(NcclCommunicatorTest, AStepStartsNoThread) {
  auto group = test::FormNccl(world());
  const int threads = test::NumThreads(), launch_threads = nccl_emulation::NumLaunchThreads();
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    for (int layer = 0; layer < 48; ++layer) {
      for (int i = 0; i < 3; ++i) {
        ASSIGN_OR_RETURN(auto work, test::StartExchange(comm, memory, 16, test::Soon()));
        RETURN_IF_ERROR(work->Wait());
      }
    }
    ASSIGN_OR_RETURN(auto fence, comm->Fence({.stream = memory->stream(), .deadline = test::Soon()}));
    return fence->WaitOnHost();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(nccl_emulation::NumLaunchThreads(), launch_threads);
  // Fewer, where a joined thread of the group's forming was still listed above.
  EXPECT_LE(test::NumThreads(), threads);
}

TEST_P(NcclCommunicatorTest, EpochAfterEpochLeavesNothingBehind) {
  int threads = 0;
  for (int epoch = 1; epoch <= 5; ++epoch) {
    if (epoch == 3) threads = test::NumThreads();
    auto group = test::FormNccl(world(), epoch);
    const auto statuses = test::RunRanks(&group, [&](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
      RETURN_IF_ERROR(test::CheckOneSidedExchange(comm, memory));
      RETURN_IF_ERROR(test::CheckPairs(comm, memory));
      if (epoch % 2 == 0) comm->Abort("every other epoch ends like this");
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(epoch % 2 == 0 || status.ok()) << status;
  }
  EXPECT_EQ(nccl_emulation::NumLive(), 0);
  EXPECT_EQ(test::NumThreads(), threads);
}

// A Split of a Split, its messages, and a launch of it in a graph.
TEST_P(NcclCommunicatorTest, SplitsAreGroups) {
  test::ExpectNcclOk(world(), [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    ASSIGN_OR_RETURN(auto half, comm->Split(comm->rank() % 2, -comm->rank(), test::Soon()));
    RETURN_IF_ERROR(test::CheckSizedGathers(half.get(), memory));
    ASSIGN_OR_RETURN(auto same, half->Split(0, half->rank(), test::Soon()));
    ASSIGN_OR_RETURN(auto barrier, same->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
    RETURN_IF_ERROR(barrier->Wait());
    RETURN_IF_ERROR(CaptureAndReplay(same.get(), memory));
    return test::CheckExactSums(comm, memory);
  });
}

TEST(NcclOverSocketsTest, MessagesAndDevicesTakeTurns) {
  auto group = test::FormNcclOverSockets(2);
  for (const absl::Status& status : group.formed) ASSERT_TRUE(status.ok()) << status;
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    for (int i = 0; i < 3; ++i) {
      RETURN_IF_ERROR(test::CheckSizedExchanges(comm, memory));
      ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
      RETURN_IF_ERROR(barrier->Wait());
      RETURN_IF_ERROR(test::CheckExactSums(comm, memory));
      RETURN_IF_ERROR(test::CheckMesh(comm, memory));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  group.ranks[1]->Abort("the test says so");
  auto work = test::StartSum(group.ranks[0].get(), group.memory[0].get(), test::Soon());
  EXPECT_THAT((work.ok() ? (*work)->WaitOnHost() : work.status()).ToString(), HasSubstr("UNAVAILABLE"));
}

TEST(NcclCallTest, AnotherDevicesStreamIsRefused) {
  auto group = test::FormNccl(2);
  const TensorView values = group.memory[1]->Make(DType::kF32, 4);
  const auto work =
      group.ranks[0]->AllReduceSum({.stream = group.memory[1]->stream(), .deadline = test::Soon()}, values);
  EXPECT_EQ(work.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(work.status().ToString(), HasSubstr("all_reduce_sum #0 of class all_to_all (16 bytes) on cuda:1"));
  EXPECT_TRUE(group.ranks[0]->status().ok());
}

}  // namespace
}  // namespace switchyard::comm
