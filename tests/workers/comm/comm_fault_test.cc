// Faults of ranks, after which no rank hangs: aborts, deaths, deadlines, calls that differ.
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

class CommFaultTest : public testing::TestWithParam<test::Backend> {
 protected:
  std::vector<std::unique_ptr<Communicator>> Group(int world) { return test::MakeGroup(GetParam(), world); }
};

INSTANTIATE_TEST_SUITE_P(Backends, CommFaultTest, testing::ValuesIn(test::kBackends),
                         [](const auto& i) { return test::BackendName(i.param); });

absl::Status ControlBarrier(Communicator* comm, absl::Time deadline = test::Soon()) {
  ASSIGN_OR_RETURN(auto work, comm->Barrier({.comm_class = CommClass::kControl, .deadline = deadline}));
  return work->Wait();
}

absl::Status EmptyExchange(Communicator* comm, absl::Time deadline = test::Soon()) {
  ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = deadline}, std::vector<Message>(comm->world())));
  return work->Wait();
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST_P(CommFaultTest, AbortFreesTheWaiterAndThePeers) {
  auto ranks = Group(3);
  // Ranks 0 and 1 wait for rank 2, which aborts once both are on their way.
  std::vector<std::future<absl::Status>> waits;
  std::vector<std::unique_ptr<Work>> works;
  for (int r = 0; r < 2; ++r) {
    auto work = ranks[r]->AllToAllV({.deadline = test::Soon()}, std::vector<Message>(3));
    ASSERT_TRUE(work.ok()) << work.status();
    works.push_back(*std::move(work));
  }
  for (int r = 0; r < 2; ++r) waits.push_back(std::async(std::launch::async, [&, r] { return works[r]->Wait(); }));
  const absl::Time begin = absl::Now();
  ranks[2]->Abort("the test says so");
  for (int r = 0; r < 2; ++r) {
    const absl::Status status = waits[r].get();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ranks[r]->status(), status);  // sticky
    EXPECT_EQ(EmptyExchange(ranks[r].get()), status);
    EXPECT_EQ(works[r]->Wait(), status);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));  // not the deadline's 20 s
  EXPECT_THAT(MessageOf(ranks[2]->status()), HasSubstr("the test says so"));
}

TEST_P(CommFaultTest, AbortFromAnotherThreadFreesItsOwnWaiter) {
  auto ranks = Group(2);
  auto work = ranks[0]->AllToAllV({.deadline = test::Soon()}, std::vector<Message>(2));
  ASSERT_TRUE(work.ok());
  auto wait = std::async(std::launch::async, [&] { return (*work)->Wait(); });
  ranks[0]->Abort("server said so");
  const absl::Status status = wait.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(status), HasSubstr("server said so"));
}

TEST_P(CommFaultTest, ARankThatLeavesIsNamed) {
  auto ranks = Group(2);
  ASSERT_TRUE(test::RunRanks(&ranks, [](Communicator* comm) { return ControlBarrier(comm); })[0].ok());
  ranks[1].reset();
  const absl::Status status = EmptyExchange(ranks[0].get());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 1"), HasSubstr("all_to_all_v #0")));
}

TEST_P(CommFaultTest, DeadlineNamesTheLateRank) {
  auto ranks = Group(3);
  const absl::Time deadline = absl::Now() + absl::Milliseconds(200);
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] { statuses[r] = EmptyExchange(ranks[r].get(), deadline); });
  }
  for (std::thread& thread : threads) thread.join();
  // The first rank to fail closes its connections, so the other may see that instead.
  int expired = 0;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    if (absl::IsDeadlineExceeded(status)) {
      ++expired;
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 2 did not launch all_to_all_v #0")));
    }
  }
  EXPECT_GE(expired, 1);
}

TEST_P(CommFaultTest, DifferentOpsAreNamedOnBothSides) {
  auto ranks = Group(2);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    RETURN_IF_ERROR(ControlBarrier(comm));
    const CommCall call{.comm_class = CommClass::kControl, .deadline = test::Soon()};
    if (comm->rank() == 0) return ControlBarrier(comm);
    ASSIGN_OR_RETURN(auto work, comm->AllGather(call, absl::MakeConstSpan("four", 4)));
    return work->Wait();
  });
  int named = 0;
  for (int r = 0; r < 2; ++r) {
    EXPECT_FALSE(statuses[r].ok());
    if (statuses[r].code() != absl::StatusCode::kInternal) continue;  // saw the other's connection close first
    ++named;
    EXPECT_THAT(MessageOf(statuses[r]),
                AllOf(HasSubstr("barrier #1 of class control (0 bytes)"),
                      HasSubstr("all_gather #1 of class control (4 bytes)"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
  EXPECT_GE(named, 1);
}

TEST_P(CommFaultTest, DifferentSizesAreNamed) {
  auto ranks = Group(2);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    const std::string mine(comm->rank() == 0 ? 8 : 16, 'x');
    ASSIGN_OR_RETURN(auto work,
                     comm->AllGather({.deadline = test::Soon()}, absl::MakeConstSpan(mine.data(), mine.size())));
    return work->Wait();
  });
  int named = 0;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    if (status.code() != absl::StatusCode::kInternal) continue;
    ++named;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("(8 bytes)"), HasSubstr("(16 bytes)")));
  }
  EXPECT_GE(named, 1);
}

// Sums of the same size differ only by their tags.
TEST_P(CommFaultTest, ARankThatSwapsTwoSumsIsNamed) {
  for (const int64_t elements : {64, 1 << 17}) {  // in one exchange, in two
    auto ranks = Group(3);
    const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
      RETURN_IF_ERROR(ControlBarrier(comm));
      for (const uint32_t tag : {7, 8}) {
        std::vector<float> values(elements, 1);
        std::unique_ptr<Work> work;
        ASSIGN_OR_RETURN(work, comm->AllReduceSum({.comm_class = CommClass::kAllReduce,
                                                   .deadline = test::Soon(),
                                                   .tag = comm->rank() == 1 ? 15 - tag : tag},
                                                  TensorView(values.data(), DType::kF32, {elements})));
        RETURN_IF_ERROR(work->Wait());
      }
      return absl::OkStatus();
    });
    int named = 0;
    for (int r = 0; r < 3; ++r) {
      EXPECT_FALSE(statuses[r].ok());
      if (statuses[r].code() != absl::StatusCode::kInternal) continue;  // saw another's connection close first
      ++named;
      EXPECT_THAT(MessageOf(statuses[r]), AllOf(HasSubstr("all_reduce_sum #0"), HasSubstr("with tag 7"),
                                                HasSubstr("with tag 8"), HasSubstr("rank 1")));
    }
    EXPECT_GE(named, 1);
    EXPECT_NE(ranks[0]->ledger().hash(), ranks[1]->ledger().hash());
    EXPECT_EQ(ranks[0]->ledger().hash(), ranks[2]->ledger().hash());
  }
}

TEST_P(CommFaultTest, AnOpInAnotherClassIsNamedAtTheDeadline) {
  auto ranks = Group(2);
  // Rank 1 is in an all-reduce that rank 0 knows nothing of; only rank 0's deadline is near.
  auto reduce = std::async(std::launch::async, [&] {
    float value = 1;
    auto work = ranks[1]->AllReduceSum({.comm_class = CommClass::kAllReduce, .deadline = test::Soon()},
                                       TensorView(&value, DType::kF32, {1}));
    return work.ok() ? (*work)->Wait() : work.status();
  });
  const absl::Status status = EmptyExchange(ranks[0].get(), absl::Now() + absl::Milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("rank 1 did not launch all_to_all_v #0"), HasSubstr("it launched all_reduce_sum #0")));
  EXPECT_EQ(reduce.get().code(), absl::StatusCode::kUnavailable);
}

TEST_P(CommFaultTest, ADroppedWorkBreaksTheGroup) {
  auto ranks = Group(2);
  { auto dropped = ranks[0]->AllToAllV({.deadline = test::Soon()}, std::vector<Message>(2)); }
  EXPECT_THAT(MessageOf(ranks[0]->status()), HasSubstr("dropped unfinished"));
  EXPECT_FALSE(ControlBarrier(ranks[1].get()).ok());
}

TEST_P(CommFaultTest, SeveralRanksWithoutADeadlineAreRefused) {
  auto ranks = Group(2);
  EXPECT_EQ(ranks[0]->Barrier({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ranks[0]->status().ok());  // the call was wrong, the group is whole
}

TEST_P(CommFaultTest, TheNthLaunchFailsAndAllRanksEnd) {
  for (int at = 0; at < 4; ++at) {
    auto ranks = Group(3);
    ranks[1] = MakeFaultyCommunicator(std::move(ranks[1]), {CommFault::Kind::kFail, at, {}});
    const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
      for (int i = 0; i < 4; ++i) RETURN_IF_ERROR(EmptyExchange(comm));
      return absl::OkStatus();
    });
    for (int r = 0; r < 3; ++r)
      EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << r << ": " << statuses[r];
    EXPECT_THAT(MessageOf(statuses[1]), HasSubstr(absl::StrCat("injected fault in all_to_all_v #", at)));
  }
}

TEST_P(CommFaultTest, AWrongOpOrADelayInTheMiddle) {
  auto ranks = Group(2);
  ranks[0] = MakeFaultyCommunicator(std::move(ranks[0]), {CommFault::Kind::kDelay, 1, absl::Milliseconds(20)});
  ranks[1] = MakeFaultyCommunicator(std::move(ranks[1]), {CommFault::Kind::kWrongOp, 2, {}});
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(EmptyExchange(comm));
    EXPECT_FALSE(EmptyExchange(comm).ok());
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Group after group in one process, every other one aborted in the middle of a long message: nothing is left behind.
class EpochsTest : public testing::TestWithParam<test::Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, EpochsTest,
                         testing::Values(test::Backend::kSocket, test::Backend::kOvertaking, test::Backend::kEncrypted),
                         [](const auto& i) { return test::BackendName(i.param); });

TEST_P(EpochsTest, RebuildingLeaksNothing) {
  int fds = 0, threads = 0;
  for (int epoch = 1; epoch <= 12; ++epoch) {
    if (epoch == 3) {  // whatever is made once is made
      fds = test::OpenFds();
      threads = test::NumThreads();
    }
    auto ranks = test::MakeGroup(GetParam(), 3, epoch);
    test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
      for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(EmptyExchange(comm));
      if (epoch % 2 == 0 && comm->rank() == 1) {
        comm->Abort("half of the epochs end like this");
        return absl::OkStatus();
      }
      std::vector<Message> out(3);
      for (Message& message : out) message = comm->NewMessage(3 << 20);
      ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
      return work->Wait();
    });
  }
  EXPECT_EQ(test::OpenFds(), fds);
  EXPECT_EQ(test::NumThreads(), threads);
}

}  // namespace
}  // namespace switchyard::comm
