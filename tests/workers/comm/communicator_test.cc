// Every collective over every backend and several sizes of world.
#include "workers/comm/core/communicator.h"

#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using test::ExpectRanksOk;
using test::Soon;
using test::TextMessage;
using test::TextOf;

class CommunicatorTest : public testing::TestWithParam<std::tuple<test::Backend, int>> {
 protected:
  test::Backend backend() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Groups, CommunicatorTest,
                         testing::Combine(testing::ValuesIn(test::kBackends), testing::Values(1, 2, 3)),
                         [](const auto& i) {
                           return absl::StrCat(test::BackendName(std::get<0>(i.param)), std::get<1>(i.param));
                         });

// Pseudo-random bytes that depend on sender, receiver and round.
std::string Pattern(int from, int to, int round, int64_t bytes) {
  std::string text(bytes, '\0');
  uint32_t x = 1u + from * 131u + to * 31337u + round * 7919u;
  for (char& c : text) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return text;
}

absl::Status ExchangePatterns(Communicator* comm, int round, const std::function<int64_t(int, int)>& bytes) {
  const int me = comm->rank();
  std::vector<Message> out(comm->world());
  for (int r = 0; r < comm->world(); ++r) out[r] = test::TextMessage(comm, Pattern(me, r, round, bytes(me, r)));
  ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < comm->world(); ++r) {
    if (test::TextOf(work->received()[r]) != Pattern(r, me, round, bytes(r, me))) {
      return absl::DataLossError(absl::StrCat("rank ", me, " got something else from rank ", r, " in round ", round));
    }
  }
  return absl::OkStatus();
}

TEST_P(CommunicatorTest, AllToAllVOfUnequalSplits) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    for (int round = 0; round < 20; ++round) {
      RETURN_IF_ERROR(
          ExchangePatterns(comm, round, [&](int from, int to) { return (from * 7 + to * 3 + round) % 5 * 100; }));
    }
    return absl::OkStatus();
  });
}

// Sizes around the first posted buffer (16 KiB with its header) and far beyond, growing and shrinking.
TEST_P(CommunicatorTest, AllToAllVOfLongMessages) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    const std::vector<int64_t> sizes = {0, 16 * 1024 - 65, 16 * 1024 - 64, 16 * 1024 - 63, 100'000, 1, 1 << 20, 70'000,
                                        0, 3'000'001};
    for (size_t round = 0; round < 2 * sizes.size(); ++round) {
      RETURN_IF_ERROR(ExchangePatterns(comm, static_cast<int>(round), [&](int from, int to) {
        return sizes[(round + from + 2 * to) % sizes.size()];
      }));
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, WorksMayBeFinishedInAnyOrderThatAllShare) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    constexpr int kInFlight = 6;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<std::unique_ptr<Work>> works;
      for (int i = 0; i < kInFlight; ++i) {
        std::vector<Message> out(comm->world());
        for (int r = 0; r < comm->world(); ++r)
          out[r] = test::TextMessage(comm, Pattern(comm->rank(), r, i, 20'000 * i));
        ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
        works.push_back(std::move(work));
      }
      for (int i = 0; i < kInFlight; ++i) {
        const int which = (i * 5 + repeat) % kInFlight;
        RETURN_IF_ERROR(works[which]->Wait());
        for (int r = 0; r < comm->world(); ++r) {
          if (test::TextOf(works[which]->received()[r]) != Pattern(r, comm->rank(), which, 20'000 * which)) {
            return absl::DataLossError(absl::StrCat("work ", which));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, AllGatherBroadcastBarrier) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    const std::string mine = absl::StrCat("rank ", comm->rank());
    ASSIGN_OR_RETURN(auto gather,
                     comm->AllGather({.deadline = test::Soon()}, absl::MakeConstSpan(mine.data(), mine.size())));
    RETURN_IF_ERROR(gather->Wait());
    for (int r = 0; r < comm->world(); ++r) EXPECT_EQ(test::TextOf(gather->received()[r]), absl::StrCat("rank ", r));
    for (int root = 0; root < comm->world(); ++root) {
      const std::string word = absl::StrCat("from ", root);
      const bool is_root = comm->rank() == root;
      ASSIGN_OR_RETURN(
          auto cast,
          comm->Broadcast({.comm_class = CommClass::kControl, .deadline = test::Soon()}, root, word.size(),
                          is_root ? absl::MakeConstSpan(word.data(), word.size()) : absl::Span<const char>()));
      RETURN_IF_ERROR(cast->Wait());
      EXPECT_EQ(test::TextOf(cast->received()[root]), word);
    }
    ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
    return barrier->Wait();
  });
}

template <class Elem>
absl::Status SumInPlace(Communicator* comm, std::vector<Elem>* values) {
  const CommCall call{.comm_class = CommClass::kAllReduce, .deadline = test::Soon()};
  const TensorView view(values->data(), DTypeOf<Elem>::value, {static_cast<int64_t>(values->size())});
  ASSIGN_OR_RETURN(auto sum, comm->AllReduceSum(call, view));
  return sum->Wait();
}

template <class Elem>
absl::Status CheckSums(Communicator* comm, int64_t n) {
  using Wide = std::conditional_t<std::is_same_v<Elem, Bf16>, float, Elem>;
  std::vector<Elem> values(n);
  std::vector<Wide> expected(n, 0), got;
  for (int r = 0; r < comm->world(); ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const Elem x = static_cast<Elem>((i % 97) * 1.1 + r * 0.37);
      if (r == comm->rank()) values[i] = x;
      expected[i] = r == 0 ? static_cast<Wide>(x) : expected[i] + static_cast<Wide>(x);  // in rank order: equal bits
    }
  }
  RETURN_IF_ERROR(SumInPlace(comm, &values));
  for (const Elem x : values) got.push_back(static_cast<Wide>(x));
  for (Wide& x : expected) x = static_cast<Wide>(static_cast<Elem>(x));
  EXPECT_EQ(got, expected) << "all_reduce_sum of " << n;
  return absl::OkStatus();
}

TEST_P(CommunicatorTest, SumsHaveTheBitsOfRankOrder) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{50'000}}) {
      RETURN_IF_ERROR(CheckSums<float>(comm, n));
      RETURN_IF_ERROR(CheckSums<double>(comm, n));
      RETURN_IF_ERROR(CheckSums<int64_t>(comm, n));
      RETURN_IF_ERROR(CheckSums<Bf16>(comm, n));
    }
    return absl::OkStatus();
  });
}

// 256 + 1 is 256 in bf16; 256 + 1 + 1, rounded once, is not.
TEST_P(CommunicatorTest, Bf16SumsAreRoundedOnce) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    for (const size_t n : {size_t{3}, size_t{50'000}}) {
      std::vector<Bf16> values(n, Bf16(comm->rank() == 0 ? 256.0f : 1.0f));
      RETURN_IF_ERROR(SumInPlace(comm, &values));
      const Bf16 sum(255.0f + static_cast<float>(comm->world()));
      for (const Bf16 value : values) EXPECT_EQ(value.bits, sum.bits) << "of " << n;
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, ClassesDoNotWaitForEachOther) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    // Even ranks launch the all-reduce first, odd ranks the all-to-all: no agreement between classes is needed.
    std::vector<float> values(100'000, 1.0f);
    std::unique_ptr<Work> reduce, exchange;
    for (int i = 0; i < 2; ++i) {
      if ((comm->rank() + i) % 2 == 0) {
        ASSIGN_OR_RETURN(reduce, comm->AllReduceSum({.comm_class = CommClass::kAllReduce, .deadline = test::Soon()},
                                                    TensorView(values.data(), DType::kF32, {100'000})));
        RETURN_IF_ERROR(reduce->Wait());
      } else {
        std::vector<Message> out(comm->world());
        ASSIGN_OR_RETURN(exchange, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
        // Finished after the reduce on the ranks that start it first.
      }
    }
    RETURN_IF_ERROR(exchange->Wait());
    EXPECT_EQ(values[99'999], static_cast<float>(comm->world()));
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, SendAndRecvAroundTheRing) {
  if (world() == 1) GTEST_SKIP() << "no peer";
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    const int right = (comm->rank() + 1) % comm->world();
    const int left = (comm->rank() + comm->world() - 1) % comm->world();
    for (int round = 0; round < 5; ++round) {
      const int64_t bytes = round * 30'000;
      ASSIGN_OR_RETURN(auto send, comm->Send({.deadline = test::Soon()}, right,
                                             test::TextMessage(comm, Pattern(comm->rank(), right, round, bytes))));
      ASSIGN_OR_RETURN(auto recv, comm->Recv({.deadline = test::Soon()}, left));
      RETURN_IF_ERROR(recv->Wait());
      RETURN_IF_ERROR(send->Wait());
      EXPECT_TRUE(test::TextOf(recv->received()[left]) == Pattern(left, comm->rank(), round, bytes))
          << "round " << round;
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, SplitsTalkAmongThemselves) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    ASSIGN_OR_RETURN(auto half, comm->Split(comm->rank() % 2, -comm->rank(), test::Soon()));
    EXPECT_EQ(half->world(), (comm->world() + 1 - comm->rank() % 2) / 2);
    ASSIGN_OR_RETURN(auto alone, half->Split(half->rank(), 0, test::Soon()));
    EXPECT_EQ(alone->world(), 1);
    for (int round = 0; round < 3; ++round) {
      const std::string mine = absl::StrCat(comm->rank());
      ASSIGN_OR_RETURN(auto work,
                       half->AllGather({.deadline = test::Soon()}, absl::MakeConstSpan(mine.data(), mine.size())));
      RETURN_IF_ERROR(work->Wait());
      for (int i = 0; i < half->world(); ++i) {  // ranked by falling parent rank
        const int last = comm->rank() % 2 == (comm->world() - 1) % 2 ? comm->world() - 1 : comm->world() - 2;
        EXPECT_EQ(test::TextOf(work->received()[i]), absl::StrCat(last - 2 * i));
      }
      for (int root = 0; root < half->world(); ++root) {
        const bool is_root = half->rank() == root;
        ASSIGN_OR_RETURN(auto cast,
                         half->Broadcast({.deadline = test::Soon()}, root, 1,
                                         is_root ? absl::MakeConstSpan(mine.data(), 1) : absl::Span<const char>()));
        RETURN_IF_ERROR(cast->Wait());
        EXPECT_EQ(test::TextOf(cast->received()[root]), test::TextOf(work->received()[root]));
      }
      RETURN_IF_ERROR(ExchangePatterns(half.get(), round, [](int, int) { return 40'000; }));
      RETURN_IF_ERROR(ExchangePatterns(comm, round, [](int, int) { return 10; }));
    }
    return absl::OkStatus();
  });
}

absl::Status SumOf(Communicator* comm, CommClass comm_class, int round, int64_t elements) {
  std::vector<double> values(elements);
  for (int64_t i = 0; i < elements; ++i) values[i] = static_cast<double>(i + round) * (comm->rank() + 1);
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, comm->AllReduceSum(
                             {.comm_class = comm_class, .deadline = test::Soon(), .tag = static_cast<uint32_t>(round)},
                             TensorView(values.data(), DType::kF64, {elements})));
  RETURN_IF_ERROR(work->Wait());
  const int ranks = comm->world() * (comm->world() + 1) / 2;
  for (int64_t i = 0; i < elements; ++i) {
    if (values[i] == static_cast<double>(i + round) * ranks) continue;
    return absl::DataLossError(absl::StrCat("sum ", round, " has ", values[i], " at ", i));
  }
  return absl::OkStatus();
}

// Short, long and longer than any posted room, side by side.
TEST_P(CommunicatorTest, EachClassMayHaveAThreadOfItsOwn) {
  constexpr int kRounds = 40;
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    absl::Status sums, layer_sums;
    const auto sum = [comm](CommClass comm_class, int elements, absl::Status* status) {
      for (int i = 0; i < kRounds && status->ok(); ++i) {
        *status = SumOf(comm, comm_class, i, i % 8 == 7 ? 1 << 18 : elements * i);
      }
    };
    std::thread summing(sum, CommClass::kAllReduce, 100, &sums);
    std::thread of_layers(sum, CommClass::kLayerSum, 70, &layer_sums);
    absl::Status exchanges;
    for (int i = 0; i < kRounds && exchanges.ok(); ++i) {
      exchanges = ExchangePatterns(comm, i, [i](int from, int to) {
        return i % 16 == 15 ? (9 << 20) + from : 1000 * ((from + 2 * to + i) % 50);
      });
    }
    summing.join();
    of_layers.join();
    RETURN_IF_ERROR(sums);
    RETURN_IF_ERROR(layer_sums);
    return exchanges;
  });
}

TEST_P(CommunicatorTest, LedgersAgree) {
  auto ranks = test::MakeGroup(backend(), world());
  const auto run = [](Communicator* comm) -> absl::Status {
    for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(ExchangePatterns(comm, i, [](int from, int) { return from; }));
    ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
    return barrier->Wait();
  };
  for (const absl::Status& status : test::RunRanks(&ranks, run)) EXPECT_TRUE(status.ok()) << status;
  for (const auto& comm : ranks) {
    EXPECT_EQ(comm->ledger().num_launched(), 4);
    EXPECT_EQ(comm->ledger().hash(), ranks[0]->ledger().hash());
  }
}

TEST_P(CommunicatorTest, APlannedSequenceMustBeTheNext) {
  test::ExpectRanksOk(backend(), world(), [](Communicator* comm) -> absl::Status {
    const CommCall wrong{.comm_class = CommClass::kControl, .sequence = 1, .deadline = test::Soon()};
    EXPECT_EQ(comm->Barrier(wrong).status().code(), absl::StatusCode::kInvalidArgument);
    ASSIGN_OR_RETURN(auto work,
                     comm->Barrier({.comm_class = CommClass::kControl, .sequence = 0, .deadline = test::Soon()}));
    return work->Wait();
  });
}

TEST(SoloCommunicatorTest, WhatIsSentIsWhatIsReceived) {
  auto ranks = test::MakeGroup(test::Backend::kOvertaking, 1);  // one rank: no sockets
  std::vector<Message> out(1);
  out[0] = test::TextMessage(ranks[0].get(), "hello");
  const char* const where = out[0].payload();
  auto work = ranks[0]->AllToAllV({}, std::move(out));  // and no deadline
  ASSERT_TRUE(work.ok());
  ASSERT_TRUE((*work)->Wait().ok());
  EXPECT_EQ((*work)->received()[0].payload(), where);
}

}  // namespace
}  // namespace switchyard::comm
