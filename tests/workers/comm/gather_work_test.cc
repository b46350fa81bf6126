// All-gathers in rounds: the same result as without rounds, for every world, size and disturbance.
#include "workers/comm/local/gather_work.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using test::Soon;
using test::TextOf;
using testing::HasSubstr;

// Each rank makes those of all others again, so by words: byte by byte that would be most of the test.
std::string Block(int rank, int round, int64_t bytes) {
  std::string block(static_cast<size_t>(bytes), '\0');
  uint64_t word = static_cast<uint64_t>(rank * 1000 + round + 1) * 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < block.size(); i += sizeof(word)) {
    word = (word ^ word >> 29) * 0xbf58476d1ce4e5b9 + 1;
    std::memcpy(block.data() + i, &word, std::min(sizeof(word), block.size() - i));
  }
  return block;
}

absl::Status GatherAndCheck(Communicator* comm, int round, int64_t bytes) {
  const std::string mine = Block(comm->rank(), round, bytes);
  ASSIGN_OR_RETURN(auto work, comm->AllGather({.deadline = test::Soon()}, mine));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < comm->world(); ++r) {
    if (test::TextOf(work->received()[r]) != Block(r, round, bytes)) {
      return absl::DataLossError(absl::StrCat("block of rank ", r, " on rank ", comm->rank(), ", ", bytes, " bytes"));
    }
  }
  return work->Wait();  // the same result again
}

absl::Status ExchangeAndCheck(Communicator* comm, int round, int64_t bytes) {
  std::vector<Message> out(static_cast<size_t>(comm->world()));
  for (Message& message : out) message = test::TextMessage(comm, Block(comm->rank(), round, bytes));
  ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < comm->world(); ++r) {
    if (test::TextOf(work->received()[r]) != Block(r, round, bytes))
      return absl::DataLossError(absl::StrCat("rank ", r));
  }
  return absl::OkStatus();
}

TEST(GatherRoundsTest, EveryBlockArrivesOnceInLogManyRounds) {
  for (int world = 1; world <= 70; ++world) {
    const std::vector<GatherRound> rounds = GatherRounds(world);
    int held = 1, log = 0;
    while ((1 << log) < world) ++log;
    EXPECT_EQ(static_cast<int>(rounds.size()), log) << world;
    for (const GatherRound& round : rounds) {
      EXPECT_EQ(round.distance, held) << world;  // what comes continues what is held
      EXPECT_LE(round.blocks, held) << world;    // a rank sends only blocks that it holds
      held += round.blocks;
    }
    EXPECT_EQ(held, world);
  }
}

TEST(GatherRoundsTest, LargeOnesSmallGroupsAndControlGoDirectly) {
  const auto in_rounds = [](int64_t bytes, int world, CommClass comm_class) {
    return GathersInRounds({.op = CommOp::kAllGather, .comm_class = comm_class, .bytes = bytes}, world);
  };
  EXPECT_TRUE(in_rounds(kSmallGatherBytes, kMinGatherWorld, CommClass::kAllToAll));
  EXPECT_TRUE(in_rounds(0, 1024, CommClass::kAllReduce));
  EXPECT_TRUE(in_rounds(64, 16, CommClass::kLayerSum));
  EXPECT_FALSE(in_rounds(kSmallGatherBytes + 1, kMinGatherWorld, CommClass::kAllToAll));
  EXPECT_FALSE(in_rounds(kSmallGatherBytes, kMinGatherWorld - 1, CommClass::kAllToAll));
  EXPECT_FALSE(in_rounds(64, 16, CommClass::kControl));
}

// One group for all of it: most of a test's time is connecting.
absl::Status AllSizes(Communicator* comm) {
  int round = 0;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{64}, int64_t{1000}, kSmallGatherBytes - 1,
                              kSmallGatherBytes, kSmallGatherBytes + 1, int64_t{40'000}, int64_t{8}}) {
    RETURN_IF_ERROR(GatherAndCheck(comm, ++round, bytes));
  }
  return absl::OkStatus();
}

// Between exchanges with frames larger than what was posted, so that room promised on a pair must be kept on it.
absl::Status BetweenOtherCollectivesUnderDelays(Communicator* comm) {
  std::mt19937 delays(static_cast<uint32_t>(comm->rank()));
  for (int round = 0; round < 12; ++round) {
    if (delays() % 4 == 0) absl::SleepFor(absl::Microseconds(delays() % 1500));
    RETURN_IF_ERROR(GatherAndCheck(comm, round, 16 << (round % 9)));
    if (round % 3 == 1) RETURN_IF_ERROR(ExchangeAndCheck(comm, round, 5000 * round));
    if (round % 4 == 2) {
      std::vector<float> values(20'000, 1);  // a sum in two halves, the second numbered before it starts
      const TensorView view(values.data(), DType::kF32, {20'000});
      ASSIGN_OR_RETURN(auto sum,
                       comm->AllReduceSum({.comm_class = CommClass::kAllToAll, .deadline = test::Soon()}, view));
      RETURN_IF_ERROR(sum->Wait());
      if (values[19'999] != static_cast<float>(comm->world())) return absl::DataLossError("sum");
    }
  }
  return absl::OkStatus();
}

// Frames grow by exchanges; a gather in between, in which most pairs have one direction or none, must promise no more
// room than what lies posted.
absl::Status BetweenGrowingFrames(Communicator* comm) {
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < round % 3; ++i) RETURN_IF_ERROR(GatherAndCheck(comm, round, 32));
    RETURN_IF_ERROR(ExchangeAndCheck(comm, round, int64_t{20'000} << round % 5));
  }
  return absl::OkStatus();
}

absl::Status SeveralInFlightWaitedForInAnotherOrder(Communicator* comm) {
  constexpr int kInFlight = 5;
  for (int repeat = 0; repeat < 4; ++repeat) {
    std::vector<std::unique_ptr<Work>> works(kInFlight);
    for (int i = 0; i < kInFlight; ++i) {
      const std::string mine = Block(comm->rank(), i, 100 * i);
      if (i == 2) {  // a direct one in between
        std::vector<Message> out(static_cast<size_t>(comm->world()));
        for (Message& message : out) message = test::TextMessage(comm, mine);
        ASSIGN_OR_RETURN(works[i], comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
      } else {
        ASSIGN_OR_RETURN(works[i], comm->AllGather({.deadline = test::Soon()}, mine));
      }
    }
    for (int i = 0; i < kInFlight; ++i) {
      const int which = (i * 3 + repeat) % kInFlight;
      RETURN_IF_ERROR(works[which]->Wait());
      for (int r = 0; r < comm->world(); ++r) {
        if (test::TextOf(works[which]->received()[r]) != Block(r, which, 100 * which)) {
          return absl::DataLossError(absl::StrCat("work ", which, ", rank ", r));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status InASplit(Communicator* comm) {
  ASSIGN_OR_RETURN(auto part, comm->Split(comm->rank() % 5 == 0, -comm->rank(), test::Soon()));
  for (int round = 0; round < 3; ++round) {
    RETURN_IF_ERROR(GatherAndCheck(part.get(), round, 200));
    RETURN_IF_ERROR(GatherAndCheck(comm, round, 100));
  }
  return absl::OkStatus();
}

class GatherWorkTest : public testing::TestWithParam<std::tuple<test::Backend, int>> {};
INSTANTIATE_TEST_SUITE_P(Local, GatherWorkTest,
                         testing::Combine(testing::Values(test::Backend::kLocal), testing::Range(1, 18)),
                         [](const auto& i) { return absl::StrCat(std::get<1>(i.param)); });
INSTANTIATE_TEST_SUITE_P(Socket, GatherWorkTest,
                         testing::Combine(testing::Values(test::Backend::kSocket),
                                          testing::Values(2, 5, 6, 7, 8, 9, 16, 17)),
                         [](const auto& i) { return absl::StrCat(std::get<1>(i.param)); });
INSTANTIATE_TEST_SUITE_P(Overtaking, GatherWorkTest,
                         testing::Combine(testing::Values(test::Backend::kOvertaking),
                                          testing::Values(2, 5, 6, 7, 8, 9, 16, 17)),
                         [](const auto& i) { return absl::StrCat(std::get<1>(i.param)); });

TEST_P(GatherWorkTest, TheSameAsByTellingEverybody) {
  auto ranks = test::MakeGroup(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    RETURN_IF_ERROR(GatherAndCheck(comm, 0, 64));
    EXPECT_EQ(comm->ledger().num_launched(), 1);  // whatever its rounds
    RETURN_IF_ERROR(AllSizes(comm));
    RETURN_IF_ERROR(BetweenGrowingFrames(comm));
    RETURN_IF_ERROR(BetweenOtherCollectivesUnderDelays(comm));
    RETURN_IF_ERROR(SeveralInFlightWaitedForInAnotherOrder(comm));
    return InASplit(comm);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  for (const auto& comm : ranks) EXPECT_EQ(comm->ledger().hash(), ranks[0]->ledger().hash());
}

class GatherFaultTest : public testing::TestWithParam<test::Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, GatherFaultTest, testing::ValuesIn(test::kBackends),
                         [](const auto& i) { return test::BackendName(i.param); });

constexpr int kWorld = 6;  // three rounds

TEST_P(GatherFaultTest, AFaultInAnyRoundEndsAllRanks) {
  for (int at = 0; at < 6; ++at) {  // two gathers of three rounds
    auto ranks = test::MakeGroup(GetParam(), kWorld);
    ranks[3] = MakeFaultyCommunicator(std::move(ranks[3]), {CommFault::Kind::kFail, at, {}});
    const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
      RETURN_IF_ERROR(GatherAndCheck(comm, 0, 64));
      RETURN_IF_ERROR(GatherAndCheck(comm, 1, 64));
      return GatherAndCheck(comm, 2, 64);  // a rank that was past the fault sees it here
    });
    for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(statuses[3].message()), HasSubstr(absl::StrCat("injected fault in all_gather #", at / 3)));
  }
}

TEST_P(GatherFaultTest, AnotherCollectiveOrSizeIsNamedAtOnce) {
  for (const bool other_size : {false, true}) {
    auto ranks = test::MakeGroup(GetParam(), kWorld);
    const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
      if (comm->rank() != 2) return GatherAndCheck(comm, 0, 64);
      if (other_size) return GatherAndCheck(comm, 0, 65);
      ASSIGN_OR_RETURN(auto work, comm->Barrier({.comm_class = CommClass::kAllToAll, .deadline = test::Soon()}));
      return work->Wait();
    });
    int named = 0;
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
      if (status.code() == absl::StatusCode::kInternal) ++named;
    }
    EXPECT_GE(named, 1);
  }
}

TEST_P(GatherFaultTest, TheDeadlineNamesWhoIsLateOrWaitsForIt) {
  auto ranks = test::MakeGroup(GetParam(), kWorld);
  const absl::Time deadline = absl::Now() + absl::Milliseconds(300);
  std::vector<absl::Status> statuses(kWorld);
  std::vector<std::thread> threads;
  for (int r = 0; r < kWorld; ++r) {
    if (r == 3) continue;  // never comes
    threads.emplace_back([&, r] {
      auto work = ranks[static_cast<size_t>(r)]->AllGather({.deadline = deadline}, "abcd");
      statuses[static_cast<size_t>(r)] = work.ok() ? (*work)->Wait() : work.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  int expired = 0;
  for (int r = 0; r < kWorld; ++r) {
    if (r == 3) continue;
    const absl::Status& status = statuses[static_cast<size_t>(r)];
    EXPECT_FALSE(status.ok());
    if (!absl::IsDeadlineExceeded(status)) continue;  // saw another one fail first
    ++expired;
    const std::string text(status.message());
    if (r == 4) {
      EXPECT_THAT(text, HasSubstr("rank 3 did not launch all_gather #0"));
    } else {
      EXPECT_THAT(text, HasSubstr("it, or a rank that it waits for, is late"));
    }
  }
  EXPECT_GE(expired, 1);
}

TEST_P(GatherFaultTest, ADroppedOneBreaksTheGroup) {
  auto ranks = test::MakeGroup(GetParam(), kWorld);
  { auto dropped = ranks[0]->AllGather({.deadline = test::Soon()}, "abcd"); }
  EXPECT_THAT(std::string(ranks[0]->status().message()), HasSubstr("dropped unfinished"));
}

}  // namespace
}  // namespace switchyard::comm
