// What goes wrong in an NCCL group, and that every rank learns of it, is freed and can form the next epoch.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/nccl_control.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/comm/nccl_test_util.h"

namespace switchyard::comm {
namespace {

using test::DeviceMemory;
using test::FormNccl;
using test::NcclRanks;
using test::Soon;
using test::StartExchange;
using test::StartSum;
using testing::AllOf;
using testing::HasSubstr;

class NcclFaultTest : public testing::Test {
 protected:
  ~NcclFaultTest() override {
    nccl_emulation::Reset();
    cuda_emulation::Reset();
    EXPECT_EQ(nccl_emulation::NumLive(), 0);
  }
};

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

absl::Status ExchangeAndWait(Communicator* comm, test::DeviceMemory* memory, absl::Time deadline = test::Soon()) {
  ASSIGN_OR_RETURN(auto work, test::StartExchange(comm, memory, 16, deadline));
  return work->WaitOnHost();
}

// All ranks' errors in one text, and that all have one.
std::string ExpectAllFailed(const test::NcclRanks& group, const std::vector<absl::Status>& statuses) {
  std::string text;
  for (size_t r = 0; r < statuses.size(); ++r) {
    EXPECT_FALSE(statuses[r].ok()) << "rank " << r;
    EXPECT_EQ(group.ranks[r]->status(), statuses[r]) << "sticky on rank " << r;
    absl::StrAppend(&text, "rank ", r, ": ", statuses[r].ToString(), "\n");
  }
  return text;
}

TEST_F(NcclFaultTest, ADeadlineNamesWhoHasNotLaunched) {
  auto group = test::FormNccl(3);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    RETURN_IF_ERROR(ExchangeAndWait(comm, memory));
    if (comm->rank() == 1) return absl::OkStatus();
    return ExchangeAndWait(comm, memory, absl::Now() + absl::Milliseconds(200));
  });
  EXPECT_TRUE(statuses[1].ok());
  for (const int r : {0, 2}) {  // by itself, or from the other's last words
    EXPECT_THAT(MessageOf(statuses[r]),
                AllOf(HasSubstr("all_to_all_sized #1 of class all_to_all (device launch 3) was not done in time"),
                      HasSubstr("rank 1 has not launched it (3 launched, the last was all_to_all_sized #0")));
    EXPECT_EQ(group.ranks[r]->status(), statuses[r]);
  }
  EXPECT_EQ(ExchangeAndWait(group.ranks[0].get(), group.memory[0].get()), statuses[0]);  // sticky
}

TEST_F(NcclFaultTest, SizesThatDifferAreNamedAtTheDeadline) {
  auto group = test::FormNccl(2);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    ASSIGN_OR_RETURN(auto work, test::StartExchange(comm, memory, comm->rank() == 0 ? 16 : 24,
                                                    absl::Now() + absl::Milliseconds(200)));
    return work->WaitOnHost();
  });
  EXPECT_THAT(ExpectAllFailed(group, statuses),
              testing::AnyOf(HasSubstr("rank 0 sends rank 1 16 bytes, which expects 24"),
                             HasSubstr("rank 1 sends rank 0 24 bytes, which expects 16")));
}

TEST_F(NcclFaultTest, AnotherOrderIsNamedAtTheDeadline) {
  auto group = test::FormNccl(2);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    const absl::Time deadline = absl::Now() + absl::Milliseconds(200);
    auto first =
        comm->rank() == 0 ? test::StartExchange(comm, memory, 16, deadline) : test::StartSum(comm, memory, deadline);
    RETURN_IF_ERROR(first.status());
    auto second =
        comm->rank() == 0 ? test::StartSum(comm, memory, deadline) : test::StartExchange(comm, memory, 16, deadline);
    if (second.ok()) (void)(*second)->Wait();
    return (*first)->WaitOnHost();
  });
  EXPECT_THAT(ExpectAllFailed(group, statuses),
              testing::AnyOf(HasSubstr("rank 1 launched all_reduce_sum #0 of class all_reduce (32 bytes) instead"),
                             HasSubstr("rank 0 launched all_to_all_sized #0 of class all_to_all instead")));
  EXPECT_NE(group.ranks[0]->ledger().hash(), group.ranks[1]->ledger().hash());
}

// Ranks 0 and 1 are a Split, in which rank 1 launches nothing.  When rank 0's stream runs on, both its groups know.
TEST_F(NcclFaultTest, AFailureInASplitEndsTheWholeGroup) {
  auto group = test::FormNccl(4);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    ASSIGN_OR_RETURN(auto pair, comm->Split(comm->rank() / 2, comm->rank(), test::Soon()));
    if (comm->rank() == 0) {
      ASSIGN_OR_RETURN(auto work,
                       pair->RecvView({.stream = memory->stream(), .deadline = absl::Now() + absl::Milliseconds(200)},
                                      memory->Make(DType::kU8, 16)));
      RETURN_IF_ERROR(work->Wait());
      EXPECT_TRUE(memory->queue().Synchronize(test::Soon()).ok());
      EXPECT_FALSE(pair->status().ok());
      EXPECT_FALSE(comm->status().ok());
      return pair->status();
    }
    ASSIGN_OR_RETURN(auto work, test::StartSum(comm, memory, test::Soon()));
    return work->WaitOnHost();
  });
  for (size_t r = 0; r < statuses.size(); ++r) {
    EXPECT_FALSE(statuses[r].ok()) << "rank " << r;
    EXPECT_FALSE(group.ranks[r]->status().ok()) << "rank " << r;
  }
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded) << statuses[0];
  EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1 has not launched it"));
}

// Rank 0 waits on the host, rank 1's stream waits; rank 2 launches nothing and aborts.
TEST_F(NcclFaultTest, AnAbortFreesHostsAndStreamsEverywhere) {
  auto group = test::FormNccl(3);
  std::vector<std::unique_ptr<Work>> works;
  for (int r = 0; r < 2; ++r) {
    auto work = test::StartExchange(group.ranks[r].get(), group.memory[r].get(), 16, test::Soon());
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_TRUE((*work)->Wait().ok());
    works.push_back(*std::move(work));
  }
  auto host = std::async(std::launch::async, [&] { return works[0]->WaitOnHost(); });
  auto stream = std::async(std::launch::async, [&] { return group.memory[1]->queue().Synchronize(test::Soon()); });
  const absl::Time begin = absl::Now();
  group.ranks[2]->Abort("the test says so");
  EXPECT_THAT(MessageOf(host.get()), HasSubstr("rank 2 ended the group: aborted: the test says so"));
  EXPECT_TRUE(stream.get().ok());                    // it ran on, ...
  EXPECT_FALSE(group.ranks[1]->status().ok());       // ... and by then its results were known to be worthless
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));  // not the deadline's 20 s
  EXPECT_EQ(test::StartSum(group.ranks[2].get(), group.memory[2].get(), test::Soon()).status(),
            group.ranks[2]->status());
}

TEST_F(NcclFaultTest, AnAsynchronousErrorReachesAllRanks) {
  auto group = test::FormNccl(3);
  nccl_emulation::FailRank(1, 1, ncclRemoteError);
  const auto statuses = test::RunRanks(
      &group, [](Communicator* comm, test::DeviceMemory* memory) { return ExchangeAndWait(comm, memory); });
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  const std::string text = ExpectAllFailed(group, statuses);
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1: UNAVAILABLE: NCCL's asynchronous error: remote process exited"),
                          HasSubstr("rank 0: UNAVAILABLE: rank 1 ended the group: NCCL's asynchronous error"),
                          HasSubstr("rank 2: UNAVAILABLE: rank 1 ended the group: NCCL's asynchronous error")));
}

TEST_F(NcclFaultTest, AHangingDeviceIsNotBlamedOnWhoLaunched) {
  auto group = test::FormNccl(2);
  nccl_emulation::HangRank(1, 1);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) {
    return ExchangeAndWait(comm, memory, absl::Now() + absl::Milliseconds(200));
  });
  EXPECT_THAT(ExpectAllFailed(group, statuses), HasSubstr("every rank has launched it"));
  for (auto& memory : group.memory)
    EXPECT_TRUE(memory->queue().Synchronize(test::Soon()).ok());  // the abort freed both
}

// NCCL itself blocks in rank 1's launch, as it does for a peer that has still to connect.
TEST_F(NcclFaultTest, ALaunchThatBlocksEndsAtTheDeadline) {
  auto group = test::FormNccl(2);
  nccl_emulation::HangLaunch(1, 1);
  const absl::Time begin = absl::Now();
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) {
    return ExchangeAndWait(comm, memory, absl::Now() + absl::Milliseconds(200));
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_THAT(ExpectAllFailed(group, statuses),
              HasSubstr("all_to_all_sized #0 of class all_to_all (device launch 2) was not done in time on rank"));
  for (auto& memory : group.memory) EXPECT_TRUE(memory->queue().Synchronize(test::Soon()).ok());
}

// The same into a graph: rank 0 blocks, rank 1 has captured its part, rank 2 never comes.
TEST_F(NcclFaultTest, ACapturedLaunchThatBlocksEndsAtTheDeadline) {
  auto group = test::FormNccl(3);
  nccl_emulation::HangLaunch(0, 1);
  const absl::Time begin = absl::Now();
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    if (comm->rank() == 2) return absl::OkStatus();
    const TensorView values = memory->Make(DType::kF32, 8);
    RETURN_IF_ERROR(memory->queue().BeginRecording());
    auto work = comm->AllReduceSum(
        {.stream = memory->stream(), .comm_class = CommClass::kAllReduce, .deadline = absl::Now() + absl::Seconds(1)},
        values);
    EXPECT_TRUE(!work.ok() || (*work)->Wait().ok());
    (void)memory->queue().EndRecording();  // without a graph, where the launch has failed
    return work.status();
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(statuses[0]),
              HasSubstr("all_reduce_sum #0 of class all_reduce (32 bytes) (device launch 2) was not done in time on "
                        "rank 0: rank 2 has not launched it (2 launched"));
  EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("; rank 1 has finished it"));
  EXPECT_EQ(group.ranks[0]->status(), statuses[0]);
}

// What has been captured has no deadline any more: its replays' fences have.
TEST_F(NcclFaultTest, TheDeadlineOfACapturedLaunchEndsWithTheCall) {
  auto group = test::FormNccl(2);
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    const absl::Time soon = absl::Now() + absl::Milliseconds(500);
    const TensorView values = memory->Make(DType::kF32, 8);
    RETURN_IF_ERROR(memory->queue().BeginRecording());
    ASSIGN_OR_RETURN(auto work, comm->AllReduceSum({.stream = memory->stream(), .deadline = soon}, values));
    RETURN_IF_ERROR(work->Wait());
    ASSIGN_OR_RETURN(const auto graph, memory->queue().EndRecording());
    absl::SleepFor(soon + absl::Milliseconds(100) - absl::Now());
    RETURN_IF_ERROR(memory->queue().Run(graph.get()));
    ASSIGN_OR_RETURN(auto fence, comm->Fence({.stream = memory->stream(), .deadline = test::Soon()}));
    return fence->WaitOnHost();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(NcclFaultTest, AnAbortEndsALaunchThatBlocks) {
  auto group = test::FormNccl(2);
  nccl_emulation::HangLaunch(1, 1);
  auto blocked = std::async(std::launch::async, [&] {
    return test::StartExchange(group.ranks[1].get(), group.memory[1].get(), 16, test::Soon()).status();
  });
  EXPECT_EQ(blocked.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  const absl::Time begin = absl::Now();
  group.ranks[0]->Abort("the test says so");
  EXPECT_THAT(MessageOf(blocked.get()), HasSubstr("rank 0 ended the group: aborted: the test says so"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));  // not the deadline's 20 s
}

TEST_F(NcclFaultTest, ADevicesErrorEndsTheGroup) {
  auto group = test::FormNccl(2);
  cuda_emulation::FailAt("memcpy", 1, cudaErrorECCUncorrectable);  // of the own part, on one of the two
  const auto statuses = test::RunRanks(
      &group, [](Communicator* comm, test::DeviceMemory* memory) { return ExchangeAndWait(comm, memory); });
  EXPECT_THAT(ExpectAllFailed(group, statuses), HasSubstr("cudaErrorECCUncorrectable"));
}

TEST_F(NcclFaultTest, ADroppedWorkBreaksTheGroup) {
  auto group = test::FormNccl(2);
  { auto dropped = test::StartSum(group.ranks[0].get(), group.memory[0].get(), test::Soon()); }
  EXPECT_THAT(MessageOf(group.ranks[0]->status()),
              HasSubstr("all_reduce_sum #0 of class all_reduce (32 bytes) was dr"));
  EXPECT_FALSE(ExchangeAndWait(group.ranks[1].get(), group.memory[1].get()).ok());
}

TEST_F(NcclFaultTest, WhoHasLeftIsNamedAtTheNextLaunch) {
  auto group = test::FormNccl(2);
  group.ranks[1].reset();
  EXPECT_TRUE(group.ranks[0]->status().ok());  // to leave is no failure
  const absl::Status status =
      ExchangeAndWait(group.ranks[0].get(), group.memory[0].get(), absl::Now() + absl::Seconds(1));
  EXPECT_THAT(MessageOf(status), HasSubstr("rank 1 has "));  // "left the group", or "not launched it"
}

TEST_F(NcclFaultTest, TheHostGroupsEndIsTheEnd) {
  auto group = test::FormNccl(2);
  auto work = test::StartSum(group.ranks[0].get(), group.memory[0].get(), test::Soon());
  ASSERT_TRUE(work.ok());
  // The deadline of a host message passes.
  auto barrier = group.ranks[0]->Barrier({.comm_class = CommClass::kControl, .deadline = absl::Now()});
  ASSERT_TRUE(barrier.ok());
  EXPECT_FALSE((*barrier)->Wait().ok());
  const absl::Status status = (*work)->WaitOnHost();
  EXPECT_THAT(MessageOf(status), HasSubstr("rank 1 did not launch barrier"));
}

TEST_F(NcclFaultTest, AFaultyLaunchOnTheDevice) {
  auto group = test::FormNccl(2);
  group.ranks[1] = MakeFaultyCommunicator(std::move(group.ranks[1]), {CommFault::Kind::kFail, 1, {}});
  const auto statuses = test::RunRanks(&group, [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    RETURN_IF_ERROR(ExchangeAndWait(comm, memory));
    return ExchangeAndWait(comm, memory);
  });
  EXPECT_THAT(MessageOf(statuses[1]), HasSubstr("injected fault in all_to_all_sized #1"));
  EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1 ended the group: aborted: injected fault"));
}

TEST_F(NcclFaultTest, AnInitThatIsNeverReadyEndsAtTheDeadline) {
  nccl_emulation::StallInit(1);
  const auto group = test::FormNccl(3, 1, {.deadline = absl::Now() + absl::Milliseconds(500)});
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(group.formed[r].ok()) << r;
  // All ranks have the same deadline: who is first ends the others' waits, and says why.
  EXPECT_THAT(MessageOf(group.formed[1]), HasSubstr("of 3 was still in progress at its deadline"));
}

TEST_F(NcclFaultTest, ASplitThatIsNeverReadyEndsAtTheDeadline) {
  nccl_emulation::StallSplit(1);
  const auto group = test::FormNccl(3, 1, {.deadline = absl::Now() + absl::Milliseconds(500)});
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(group.formed[r].ok()) << r;
  EXPECT_THAT(MessageOf(group.formed[1]), HasSubstr("of 3 was still in progress at its deadline"));
}

TEST_F(NcclFaultTest, AnInitThatFailsIsReportedToAll) {
  nccl_emulation::FailInit(2, ncclSystemError);
  const absl::Time begin = absl::Now();
  const auto group = test::FormNccl(3);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_THAT(MessageOf(group.formed[2]), HasSubstr("unhandled system error"));
  for (const int r : {0, 1}) {
    EXPECT_THAT(MessageOf(group.formed[r]), HasSubstr("rank 2 ended the group: NCCL's asynchronous error"));
  }
}

TEST_F(NcclFaultTest, WhoNeverComesIsNamed) {
  const auto group = test::FormNccl(3, 1, {.deadline = absl::Now() + absl::Milliseconds(200)}, /*skip=*/1);
  std::string text;
  for (const int r : {0, 2}) {
    EXPECT_FALSE(group.formed[r].ok());
    text += MessageOf(group.formed[r]);
  }
  EXPECT_THAT(text, HasSubstr("rank 1 did not launch all_gather"));
}

TEST_F(NcclFaultTest, TwoRanksOnOneDeviceAreNamed) {
  const auto group = test::FormNccl(2, 1, {.device = 3});
  for (const absl::Status& status : group.formed) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("ranks 0 and 1 are on one device"));
  }
  // Allowed, it is for NCCL to say: it knows both by one machine's name, here.
  const auto shared = test::FormNccl(2, 1, {.device = 3, .allow_shared_device = true});
  std::string text;
  for (const absl::Status& status : shared.formed) {
    EXPECT_FALSE(status.ok());
    text += MessageOf(status);
  }
  EXPECT_THAT(text, HasSubstr("ncclCommInitRankConfig"));
  EXPECT_THAT(text, testing::Not(HasSubstr("are on one device")));
}

TEST_F(NcclFaultTest, OptionsThatDoNotFitAreRefused) {
  const auto no_device = test::FormNccl(1, 1, {.device = 64});
  EXPECT_EQ(no_device.formed[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(no_device.formed[0]), HasSubstr("no device cuda:64 among 8"));
  unsetenv("NCCL_ALGO");
  const auto not_fixed = test::FormNccl(1, 1, {.deterministic = true});
  EXPECT_THAT(MessageOf(not_fixed.formed[0]), HasSubstr("NCCL_ALGO and NCCL_PROTO are not set"));
  FixNcclReductions();
  EXPECT_TRUE(test::FormNccl(1, 1, {.deterministic = true}).formed[0].ok());
  EXPECT_STREQ(getenv("NCCL_ALGO"), "Ring");
}

TEST_F(NcclFaultTest, AfterAnAbortTheNextEpochWorks) {
  for (int epoch = 1; epoch <= 3; ++epoch) {
    auto group = test::FormNccl(3, epoch);
    const auto before = test::RunRanks(
        &group, [](Communicator* comm, test::DeviceMemory* memory) { return ExchangeAndWait(comm, memory); });
    for (const absl::Status& status : before) ASSERT_TRUE(status.ok()) << status;
    nccl_emulation::FailRank(epoch % 3, 1, ncclInternalError);
    const auto after = test::RunRanks(
        &group, [](Communicator* comm, test::DeviceMemory* memory) { return ExchangeAndWait(comm, memory); });
    ExpectAllFailed(group, after);
  }
}

}  // namespace
}  // namespace switchyard::comm
