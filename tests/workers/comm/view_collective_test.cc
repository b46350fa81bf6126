// Collectives on views over the backends that carry them by messages: CPU memory, done when Wait returns.
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/comm/view_checks.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using test::HostMemory;
using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

class ViewCollectiveTest : public testing::TestWithParam<std::tuple<test::Backend, int>> {
 protected:
  void ExpectOk(absl::Status (*check)(Communicator*, test::RankMemory*)) {
    test::ExpectRanksOk(std::get<0>(GetParam()), std::get<1>(GetParam()), [&](Communicator* comm) {
      test::HostMemory memory;
      return check(comm, &memory);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Groups, ViewCollectiveTest,
                         testing::Combine(testing::ValuesIn(test::kBackends), testing::Values(1, 2, 4)),
                         [](const auto& i) {
                           return absl::StrCat(test::BackendName(std::get<0>(i.param)), std::get<1>(i.param));
                         });

TEST_P(ViewCollectiveTest, SizedExchanges) { ExpectOk(test::CheckSizedExchanges); }
TEST_P(ViewCollectiveTest, OneSidedExchanges) { ExpectOk(test::CheckOneSidedExchange); }
TEST_P(ViewCollectiveTest, SizedGathers) { ExpectOk(test::CheckSizedGathers); }
TEST_P(ViewCollectiveTest, Pairs) { ExpectOk(test::CheckPairs); }
TEST_P(ViewCollectiveTest, Mesh) { ExpectOk(test::CheckMesh); }
TEST_P(ViewCollectiveTest, Sums) { ExpectOk(test::CheckExactSums); }

TEST_P(ViewCollectiveTest, LedgersAgreeAndAFenceIsInThem) {
  auto ranks = test::MakeGroup(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto run = [](Communicator* comm) -> absl::Status {
    test::HostMemory memory;
    RETURN_IF_ERROR(test::CheckOneSidedExchange(comm, &memory));
    RETURN_IF_ERROR(test::CheckSizedGathers(comm, &memory));
    ASSIGN_OR_RETURN(auto fence, comm->Fence({.deadline = test::Soon()}));
    return fence->Wait();
  };
  for (const absl::Status& status : test::RunRanks(&ranks, run)) EXPECT_TRUE(status.ok()) << status;
  for (const auto& comm : ranks) {
    EXPECT_EQ(comm->ledger().num_launched(), 10);
    EXPECT_EQ(comm->ledger().hash(), ranks[0]->ledger().hash());
  }
}

TEST(LaunchLedgerTest, TheOrderOverClassesCountsForStreamOrderedLaunchesOnly) {
  const OpKey exchange{.op = CommOp::kAllToAllSized, .comm_class = CommClass::kAllToAll};
  const OpKey reduce{.op = CommOp::kAllReduceSum, .comm_class = CommClass::kAllReduce, .bytes = 4};
  LaunchLedger a, b;
  a.Record(exchange);
  a.Record(reduce);
  b.Record(reduce);
  b.Record(exchange);
  EXPECT_EQ(a.hash(), b.hash());
  a.RecordInOrder(exchange);
  a.RecordInOrder(reduce);
  b.RecordInOrder(reduce);
  b.RecordInOrder(exchange);
  EXPECT_NE(a.hash(), b.hash());
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

absl::Status WaitFor(WorkOr work) { return work.ok() ? (*work)->Wait() : work.status(); }

// Rank 1 sends `sent` bytes where rank 0 expects four.
absl::Status ExchangeWithSize(Communicator* comm, int64_t sent) {
  std::array<uint8_t, 16> out{}, in{};
  const int64_t to_other = comm->rank() == 1 ? sent : 4;
  const std::vector<int64_t> offsets = {0, 8};
  const std::vector<int64_t> send = comm->rank() == 0 ? std::vector<int64_t>{0, 4} : std::vector<int64_t>{to_other, 0};
  const std::vector<int64_t> recv = comm->rank() == 0 ? std::vector<int64_t>{0, 4} : std::vector<int64_t>{4, 0};
  ASSIGN_OR_RETURN(auto work, comm->AllToAllSized({.deadline = test::Soon()},
                                                  {TensorView(out.data(), DType::kU8, {16}), offsets, send},
                                                  {TensorView(in.data(), DType::kU8, {16}), offsets, recv}));
  return work->Wait();
}

TEST(ViewCollectiveFaultTest, SizesThatDifferAreNamed) {
  for (const test::Backend backend : test::kBackends) {
    for (const int64_t sent : {0, 7}) {
      auto ranks = test::MakeGroup(backend, 2);
      const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) { return ExchangeWithSize(comm, sent); });
      EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInternal) << statuses[0];
      EXPECT_THAT(MessageOf(statuses[0]),
                  AllOf(HasSubstr("all_to_all_sized #0"), HasSubstr(absl::StrCat("rank 1 sent ", sent, " bytes")),
                        HasSubstr("rank 0 expects 4")));
      EXPECT_FALSE(ranks[0]->status().ok());  // sticky
    }
  }
}

// Rank 1 says that its part has seven bytes, rank 0 that it has four.
TEST(ViewCollectiveFaultTest, GatheredSizesThatDifferAreNamed) {
  auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    std::array<uint8_t, 16> all{};
    const std::vector<int64_t> offsets = {0, 8}, bytes = {4, comm->rank() == 1 ? 7 : 4};
    ASSIGN_OR_RETURN(auto work, comm->AllGatherSized({.deadline = test::Soon()},
                                                     {TensorView(all.data(), DType::kU8, {16}), offsets, bytes}));
    return work->Wait();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInternal) << statuses[0];
  EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("in all_gather_sized #0 of class all_to_all rank 1 sent 7 bytes where "
                                                "rank 0 expects 4"));
}

TEST(ViewCollectiveFaultTest, BothEndsOfAViewMustFit) {
  struct {
    bool sends;  // rank 1: what rank 0 expects is that it receives four bytes
    int64_t bytes;
    const char* what;
  } table[] = {{true, 4, "launched send_view #0 of class layer_sum (4 bytes) from rank 1"},
               {false, 7, "launched send_view #0 of class layer_sum (7 bytes) from rank 0"}};
  for (const test::Backend backend : test::kBackends) {
    for (const auto& bad : table) {
      auto ranks = test::MakeGroup(backend, 2);
      const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
        std::array<uint8_t, 16> bytes{};
        const CommCall call{.comm_class = CommClass::kLayerSum, .deadline = test::Soon()};
        const TensorView four(bytes.data(), DType::kU8, {4}), other(bytes.data(), DType::kU8, {bad.bytes});
        if (comm->rank() == 1 && !bad.sends) return WaitFor(comm->RecvView(call, other));
        return WaitFor(comm->SendView(call, comm->rank() == 0 ? four : other));
      });
      EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInternal) << statuses[0];
      EXPECT_THAT(MessageOf(statuses[0]), AllOf(HasSubstr("rank 1 "), HasSubstr(bad.what)));
    }
  }
}

TEST(ViewCollectiveFaultTest, AFaultyLaunchEndsTheGroup) {
  auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
  ranks[1] = MakeFaultyCommunicator(std::move(ranks[1]), {CommFault::Kind::kFail, 1, {}});
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    RETURN_IF_ERROR(ExchangeWithSize(comm, 4));
    return ExchangeWithSize(comm, 4);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

struct BadParts {
  const char* what;
  std::vector<int64_t> send_offsets, send_bytes, recv_offsets, recv_bytes;
};

// This rank is 0 of 2; the memory has 16 bytes.
TEST(ViewCollectiveFaultTest, PartsThatDoNotFitAreRefused) {
  const BadParts table[] = {
      {"rank 1's part to send, 9 bytes at 8, is outside", {0, 8}, {0, 9}, {0, 8}, {0, 8}},
      {"rank 1's part to receive, 4 bytes at 13, is outside", {0, 8}, {0, 8}, {0, 13}, {0, 4}},
      {"rank 0's part to send, -1 bytes", {0, 8}, {-1, 8}, {0, 8}, {-1, 8}},
      {"rank 1's part to send, 8 bytes at -8", {0, -8}, {0, 8}, {0, 8}, {0, 8}},
      {"9223372036854775807 bytes at 8", {0, 8}, {0, INT64_MAX}, {0, 8}, {0, 8}},
      {"what ranks 0 and 1 send overlaps", {0, 8}, {8, 8}, {0, 7}, {8, 8}},
      {"rank 0 sends itself 4 bytes and receives 5", {0, 8}, {4, 0}, {0, 8}, {5, 0}},
      {"1 offsets and 2 sizes to send in a group of 2", {0}, {0, 0}, {0, 0}, {0, 0}},
      {"2 offsets and 3 sizes to receive", {0, 0}, {0, 0}, {0, 0}, {0, 0, 0}},
  };
  auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
  std::array<uint8_t, 16> bytes{};
  const TensorView memory(bytes.data(), DType::kU8, {16});
  for (const BadParts& bad : table) {
    const auto work = ranks[0]->AllToAllSized({.deadline = test::Soon()}, {memory, bad.send_offsets, bad.send_bytes},
                                              {memory, bad.recv_offsets, bad.recv_bytes});
    EXPECT_EQ(work.status().code(), absl::StatusCode::kInvalidArgument) << bad.what;
    EXPECT_THAT(MessageOf(work.status()), HasSubstr(bad.what));
  }
  const BadParts gathers[] = {
      {"all_gather_sized: rank 1's part to gather, 9 bytes at 8, is outside", {}, {}, {0, 8}, {8, 9}},
      {"all_gather_sized: what ranks 0 and 1 send overlaps", {}, {}, {0, 7}, {8, 8}},
      {"all_gather_sized: 0 offsets and 2 sizes to gather in a group of 2", {}, {}, {}, {8, 8}},
  };
  for (const BadParts& bad : gathers) {
    const auto work = ranks[0]->AllGatherSized({.deadline = test::Soon()}, {memory, bad.recv_offsets, bad.recv_bytes});
    EXPECT_EQ(work.status().code(), absl::StatusCode::kInvalidArgument) << bad.what;
    EXPECT_THAT(MessageOf(work.status()), HasSubstr(bad.what));
  }
  EXPECT_TRUE(ranks[0]->status().ok());
  EXPECT_EQ(ranks[0]->ledger().num_launched(), 0);  // refused calls are no launches
}

TEST(ViewCollectiveFaultTest, ViewsThatDoNotFitAreRefused) {
  auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
  const CommCall call{.deadline = test::Soon()};
  std::array<float, 16> values{};
  const TensorView device(values.data(), DType::kF32, {16}, Device::Cuda(1));
  EXPECT_THAT(MessageOf(ranks[0]->AllReduceSum(call, device).status()),
              HasSubstr("needs a stream of cuda:1, not none"));
  const TensorView column = TensorView(values.data(), DType::kF32, {8, 2}).Columns(0, 1);
  EXPECT_THAT(MessageOf(ranks[0]->SendView(call, column).status()), HasSubstr("is strided; it must be contiguous"));
  auto three = test::MakeGroup(test::Backend::kLocal, 3);
  EXPECT_THAT(MessageOf(three[0]->RecvView(call, column).status()), HasSubstr("Split one of this group's 3 ranks"));
  EXPECT_TRUE(ranks[0]->status().ok());
}

}  // namespace
}  // namespace switchyard::comm
