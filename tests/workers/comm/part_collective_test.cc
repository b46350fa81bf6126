// Sums of which each rank gets its part, and gathers of such parts, over every kind of group.
#include <functional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/core/part_collectives.h"
#include "workers/tensor/dtype.h"
#include "workers/tensor/tensor.h"

namespace switchyard::comm {
namespace {

// Three pieces of one memory for each rank, with gaps; rank 1 has none.
struct Pieces {
  static constexpr int64_t kSizes[] = {1, 30000, 7};  // of one rank's pieces
  Pieces(DType dtype, int world) : memory(Tensor::Zeros(dtype, {2 * world * (30000 + 8)})) {
    int64_t at = 0;
    for (int r = 0; r < world; ++r) {
      std::vector<TensorView>& pieces = parts.emplace_back();
      if (r == 1) continue;
      for (const int64_t size : kSizes) {
        pieces.push_back(memory.view().Rows(at, size + r));
        at += size + r + 3;  // with a gap
      }
    }
  }
  Tensor memory;
  PartViews parts;
};

// Rounded differently in another order of ranks.
double ValueOf(int rank, int64_t i) {
  return (rank % 2 == 0 ? 1.0 : -1.0) * (1 + 1.0 / static_cast<double>(3 + i + rank));
}

template <class Elem>
void Fill(Pieces* pieces, int rank) {
  Elem* const values = pieces->memory.data<Elem>();
  for (int64_t i = 0; i < pieces->memory.dim(0); ++i) values[i] = static_cast<Elem>(ValueOf(rank, i));
}

class PartCollectiveTest : public testing::TestWithParam<std::tuple<test::Backend, int>> {
 protected:
  void OnRanks(const std::function<absl::Status(Communicator*)>& run) {
    test::ExpectRanksOk(std::get<0>(GetParam()), std::get<1>(GetParam()), run);
  }
};

INSTANTIATE_TEST_SUITE_P(Groups, PartCollectiveTest,
                         testing::Combine(testing::ValuesIn(test::kBackends), testing::Values(1, 2, 3, 4)),
                         [](const auto& i) {
                           return absl::StrCat(test::BackendName(std::get<0>(i.param)), std::get<1>(i.param));
                         });

template <class Elem>
absl::Status SumAndCompare(Communicator* comm) {
  Pieces pieces(DTypeOf<Elem>::value, comm->world()), all(DTypeOf<Elem>::value, comm->world());
  Fill<Elem>(&pieces, comm->rank());
  Fill<Elem>(&all, comm->rank());
  const CommCall call = {.comm_class = CommClass::kAllReduce, .deadline = test::Soon()};
  ASSIGN_OR_RETURN(auto sum, comm->AllReduceSum(call, all.memory));
  ASSIGN_OR_RETURN(auto work, ReduceScatterSum(comm, call, pieces.parts));
  RETURN_IF_ERROR(sum->Wait());
  RETURN_IF_ERROR(work->Wait());
  const int64_t count = pieces.memory.dim(0);
  std::vector<bool> mine(static_cast<size_t>(count), false);
  for (const TensorView& piece : pieces.parts[static_cast<size_t>(comm->rank())]) {
    const int64_t begin = piece.data<Elem>() - pieces.memory.data<Elem>();
    for (int64_t i = begin; i < begin + piece.dim(0); ++i) mine[static_cast<size_t>(i)] = true;
  }
  for (int64_t i = 0; i < count; ++i) {
    const Elem here = pieces.memory.data<Elem>()[i];
    const Elem wanted =
        mine[static_cast<size_t>(i)] ? all.memory.data<Elem>()[i] : static_cast<Elem>(ValueOf(comm->rank(), i));
    if (!(here == wanted)) return absl::InternalError(absl::StrCat("element ", i, " on rank ", comm->rank()));
  }
  return absl::OkStatus();
}

TEST_P(PartCollectiveTest, SumsHaveTheBitsOfAnAllReduce) {
  OnRanks([](Communicator* comm) -> absl::Status {
    RETURN_IF_ERROR(SumAndCompare<float>(comm));
    return SumAndCompare<double>(comm);
  });
}

TEST_P(PartCollectiveTest, GathersBringEveryPart) {
  OnRanks([](Communicator* comm) -> absl::Status {
    Pieces pieces(DType::kF32, comm->world());
    Fill<float>(&pieces, comm->rank());
    ASSIGN_OR_RETURN(
        auto work, AllGatherParts(comm, {.comm_class = CommClass::kAllReduce, .deadline = test::Soon()}, pieces.parts));
    RETURN_IF_ERROR(work->Wait());
    for (int r = 0; r < comm->world(); ++r) {
      for (const TensorView& piece : pieces.parts[static_cast<size_t>(r)]) {
        const int64_t begin = piece.data<float>() - pieces.memory.data<float>();
        for (int64_t i = 0; i < piece.dim(0); ++i) {
          if (piece.data<float>()[i] == static_cast<float>(ValueOf(r, begin + i))) continue;
          return absl::InternalError(absl::StrCat("element ", begin + i, " of rank ", r, " on rank ", comm->rank()));
        }
      }
    }
    return absl::OkStatus();
  });
}

// Ranks that lay their memory out differently get an error that names both.
TEST_P(PartCollectiveTest, OtherPartsAreNamed) {
  const int world = std::get<1>(GetParam());
  if (world == 1) return;
  for (const bool sums : {true, false}) {
    auto ranks = test::MakeGroup(std::get<0>(GetParam()), world);
    const auto run = [&](Communicator* comm) -> absl::Status {
      Tensor values = Tensor::Zeros(DType::kF32, {64 * world});
      PartViews parts;
      for (int r = 0; r < world; ++r) parts.push_back({values.view().Rows(64 * r, comm->rank() == 0 ? 64 : 60)});
      const CommCall call = {.comm_class = CommClass::kAllReduce, .deadline = test::Soon()};
      ASSIGN_OR_RETURN(auto work, sums ? ReduceScatterSum(comm, call, parts) : AllGatherParts(comm, call, parts));
      return work->Wait();
    };
    int named = 0;
    for (const absl::Status& status : test::RunRanks(&ranks, run)) {
      EXPECT_FALSE(status.ok());
      if (status.code() == absl::StatusCode::kInternal) ++named;
    }
    EXPECT_GE(named, 1);
  }
}

}  // namespace
}  // namespace switchyard::comm
