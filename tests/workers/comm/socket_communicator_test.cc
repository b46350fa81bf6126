// A socket group's own property: all-to-alls overtake sums, launched or not.
#include "workers/comm/tcp/socket_communicator.h"

#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using test::Soon;
using test::TextMessage;
using test::TextOf;
using testing::HasSubstr;

std::vector<std::unique_ptr<Communicator>> MakeGroup(int world, std::vector<SocketTraffic>* traffic = nullptr,
                                                     int64_t frame_bytes = 16 << 10) {
  InMemoryStore store;
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      SocketGroupOptions options = {.framing = {.bytes = frame_bytes, .overtakes = true}, .socket = {}};
      options.group = {.rank = r, .world = world, .token = "secret", .address = "127.0.0.1", .deadline = test::Soon()};
      if (traffic != nullptr) options.traffic = &(*traffic)[static_cast<size_t>(r)];
      auto comm = FormSocketGroup(options, &store);
      SY_CHECK_OK(comm.status());
      ranks[static_cast<size_t>(r)] = *std::move(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

absl::Status ExchangeTexts(Communicator* comm, int round, int64_t bytes) {
  const auto text = [&](int from, int to) {
    return std::string(static_cast<size_t>(bytes), static_cast<char>('a' + (from * 5 + to * 3 + round) % 26));
  };
  std::vector<Message> out(static_cast<size_t>(comm->world()));
  for (int r = 0; r < comm->world(); ++r) out[static_cast<size_t>(r)] = test::TextMessage(comm, text(comm->rank(), r));
  ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < comm->world(); ++r) {
    if (test::TextOf(work->received()[static_cast<size_t>(r)]) != text(r, comm->rank())) {
      return absl::DataLossError(absl::StrCat("of rank ", r, " in round ", round));
    }
  }
  return absl::OkStatus();
}

// Rank 0 has launched sums that rank 1 has not, more than any credit; all-to-alls go on, and then the sums do.
TEST(SocketCommunicatorTest, SumsThatAPeerHasNotLaunchedHoldUpNoAllToAll) {
  constexpr int64_t kElements = 1 << 20;
  auto ranks = MakeGroup(2);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    std::vector<std::vector<float>> values(4, std::vector<float>(kElements, static_cast<float>(comm->rank() + 1)));
    std::vector<std::unique_ptr<Work>> sums;
    const auto launch = [&]() -> absl::Status {
      for (std::vector<float>& each : values) {
        ASSIGN_OR_RETURN(auto work, comm->AllReduceSum({.comm_class = CommClass::kAllReduce, .deadline = test::Soon()},
                                                       TensorView(each.data(), DType::kF32, {kElements})));
        sums.push_back(std::move(work));
      }
      return absl::OkStatus();
    };
    if (comm->rank() == 0) RETURN_IF_ERROR(launch());
    for (int i = 0; i < 50; ++i) RETURN_IF_ERROR(ExchangeTexts(comm, i, 30'000));
    if (comm->rank() == 1) RETURN_IF_ERROR(launch());
    for (const std::unique_ptr<Work>& work : sums) RETURN_IF_ERROR(work->Wait());
    for (const std::vector<float>& each : values) {
      EXPECT_EQ(each.front(), 3);
      EXPECT_EQ(each.back(), 3);
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(SocketCommunicatorTest, WhatIsSentIsCounted) {
  std::vector<SocketTraffic> traffic(2);
  auto ranks = MakeGroup(2, &traffic);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    RETURN_IF_ERROR(ExchangeTexts(comm, 0, 40'000));
    ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
    return barrier->Wait();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  for (const SocketTraffic& each : traffic) {
    EXPECT_EQ(each.frames[static_cast<size_t>(CommClass::kAllToAll)], 3);
    EXPECT_EQ(each.bytes[static_cast<size_t>(CommClass::kAllToAll)], 40'064);
    EXPECT_EQ(each.frames[static_cast<size_t>(CommClass::kControl)], 1);
    EXPECT_EQ(each.frames[static_cast<size_t>(CommClass::kAllReduce)], 0);
    EXPECT_EQ(each.overtaken, 0);
  }
}

// A long sum is under way all the while; every all-to-all passes it.
TEST(SocketCommunicatorTest, AllToAllsPassASumUnderWay) {
  constexpr int64_t kElements = 8 << 20;
  std::vector<SocketTraffic> traffic(2);
  auto ranks = MakeGroup(2, &traffic);
  std::atomic<int> passed = 0;
  const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
    std::vector<float> values(kElements, 1);
    ASSIGN_OR_RETURN(auto sum, comm->AllReduceSum({.comm_class = CommClass::kAllReduce, .deadline = test::Soon()},
                                                  TensorView(values.data(), DType::kF32, {kElements})));
    std::atomic<bool> summed = false;
    auto summing = std::async(std::launch::async, [&] {
      const absl::Status status = sum->Wait();
      summed = true;
      return status;
    });
    // All ranks go on equally long.
    absl::Status status;
    for (int i = 0; i < 5 && status.ok(); ++i) {
      status = ExchangeTexts(comm, i, 1000);
      if (!summed) ++passed;
    }
    RETURN_IF_ERROR(summing.get());
    EXPECT_EQ(values.back(), 2);
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(passed, 2);
  EXPECT_GE(traffic[0].overtaken + traffic[1].overtaken, 1);
}

// Rank 1 waits for rank 0, which computes, before it waits for rank 2, which has gone.
TEST(SocketCommunicatorTest, ADeathIsSeenWhoeverIsWaitedFor) {
  auto ranks = MakeGroup(3);
  auto work = ranks[1]->AllToAllV({.deadline = test::Soon()}, std::vector<Message>(3));
  ASSERT_TRUE(work.ok()) << work.status();
  auto wait = std::async(std::launch::async, [&] { return (*work)->Wait(); });
  ranks[2].reset();
  const absl::Status status = wait.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 is gone during all_to_all_v #0"));
}

// One that had gone before is known at once, too; and what it sent before is not lost.
TEST(SocketCommunicatorTest, WhoHasGoneMayHaveSentItsPart) {
  auto ranks = MakeGroup(3);
  const CommCall call = {.deadline = test::Soon()};
  auto sent = ranks[2]->Send(call, 1, test::TextMessage(ranks[2].get(), "last words"));
  ASSERT_TRUE(sent.ok() && (*sent)->Wait().ok());
  auto words = ranks[1]->Recv(call, 2);
  ASSERT_TRUE(words.ok() && (*words)->Wait().ok());
  EXPECT_EQ(test::TextOf((*words)->received()[2]), "last words");
  *sent = nullptr;  // (a work holds the connections)
  ranks[2].reset();
  auto sending = ranks[0]->Send(call, 1, test::TextMessage(ranks[0].get(), "we go on"));
  ASSERT_TRUE(sending.ok());
  auto more = ranks[1]->Recv(call, 0);  // a call that needs nothing of rank 2 continues
  ASSERT_TRUE(more.ok() && (*more)->Wait().ok());
  EXPECT_EQ(test::TextOf((*more)->received()[0]), "we go on");
  EXPECT_TRUE((*sending)->Wait().ok());
  auto work = ranks[1]->AllToAllV(call, std::vector<Message>(3));
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(std::string((*work)->Wait().message()), HasSubstr("rank 2 is gone during all_to_all_v #0"));
}

TEST(SocketCommunicatorTest, AMessageThatIsTooLongEndsTheGroup) {
  auto ranks = MakeGroup(2);
  auto other = ranks[1]->AllToAllV({.deadline = test::Soon()}, std::vector<Message>(2));
  ASSERT_TRUE(other.ok());
  std::vector<Message> out(2);
  out[1] = ranks[0]->NewMessage((int64_t{4} << 30) + 1);  // its memory is never touched
  const absl::Status status = ranks[0]->AllToAllV({.deadline = test::Soon()}, std::move(out)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("all_to_all_v #0 of class all_to_all has 4294967297 bytes for rank 1; a message has at most"));
  EXPECT_EQ(ranks[0]->status(), status);
  EXPECT_EQ((*other)->Wait().code(), absl::StatusCode::kUnavailable);
}

// Both classes with a thread each on four ranks and on splits of them, with pauses; each frame size.
TEST(SocketCommunicatorTest, SizesAndPausesOfAllKinds) {
  for (const int64_t frame_bytes : {int64_t{4} << 10, int64_t{64} << 10, int64_t{256} << 10}) {
    auto ranks = MakeGroup(4, nullptr, frame_bytes);
    const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
      ASSIGN_OR_RETURN(auto pair, comm->Split(comm->rank() % 2, comm->rank(), test::Soon()));
      absl::Status sums;
      std::thread summing([&] {
        std::mt19937 random(static_cast<uint32_t>(comm->rank()));
        for (int i = 0; i < 30 && sums.ok(); ++i) {
          Communicator* const over = i % 3 == 0 ? pair.get() : comm;
          const int64_t elements = int64_t{1} << (i * 7 % 20);
          std::vector<double> values(static_cast<size_t>(elements), over->rank() + 1.0);
          auto work = over->AllReduceSum({.comm_class = CommClass::kAllReduce, .deadline = test::Soon()},
                                         TensorView(values.data(), DType::kF64, {elements}));
          absl::SleepFor(absl::Microseconds(random() % 1000));
          sums = work.ok() ? (*work)->Wait() : work.status();
          if (sums.ok() && values.back() != (over->world() == 2 ? 3 : 10)) sums = absl::DataLossError("a sum");
        }
      });
      std::mt19937 random(static_cast<uint32_t>(10 + comm->rank()));
      absl::Status rows;
      for (int i = 0; i < 60 && rows.ok(); ++i) {
        rows = ExchangeTexts(comm, i, i * i * i);
        absl::SleepFor(absl::Microseconds(random() % 500));
      }
      summing.join();
      RETURN_IF_ERROR(sums);
      return rows;
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace switchyard::comm
