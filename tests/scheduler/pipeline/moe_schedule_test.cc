#include "scheduler/pipeline/moe_schedule.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"

namespace switchyard::pipeline {
namespace {

using testing::HasSubstr;

// "S0 H C0 R0": the ops that the papers name (scheduler/PAPERS.md), in launch order.
std::string Order(const MoeSchedule& schedule) {
  std::vector<std::string> names;
  for (const MicroOp& op : schedule.ops) {
    if (op.kind == MicroOpKind::kDispatch) names.push_back(absl::StrCat("S", op.chunk));
    if (op.kind == MicroOpKind::kCombine) names.push_back(absl::StrCat("R", op.chunk));
    if (op.kind == MicroOpKind::kExpert) {
      names.push_back(op.experts == ExpertSet::kShared ? "H" : absl::StrCat("C", op.chunk));
    }
  }
  return absl::StrJoin(names, " ");
}

// The queue of the all-to-all class alone.
std::string CommOrder(const MoeSchedule& schedule) {
  MoeSchedule comm = schedule;
  std::erase_if(comm.ops, [](const MicroOp& op) { return !IsCommunicating(op.kind); });
  return Order(comm);
}

TEST(BuildExpertParallelTest, OneMicroBatch) {
  EXPECT_EQ(Order(BuildExpertParallel({.micro_batches = 1})), "S0 C0 R0");
  EXPECT_EQ(Order(BuildExpertParallel({.micro_batches = 1, .shared_expert = true})), "S0 H C0 R0");
}

TEST(BuildExpertParallelTest, DispatchesAndCombinesAlternate) {
  EXPECT_EQ(Order(BuildExpertParallel({.micro_batches = 2, .shared_expert = true})), "S0 H S1 C0 R0 C1 R1");
  EXPECT_EQ(CommOrder(BuildExpertParallel({.micro_batches = 4})), "S0 S1 R0 S2 R1 S3 R2 R3");
}

TEST(BuildExpertParallelTest, AtMostTwoChunksAreInFlight) {
  for (int n = 1; n <= kMaxMicroBatches; ++n) {
    const MoeSchedule schedule = BuildExpertParallel({.micro_batches = n, .shared_expert = n % 2 == 0});
    EXPECT_TRUE(Validate(schedule).ok()) << Validate(schedule);
    int in_flight = 0;
    for (const MicroOp& op : schedule.ops) {
      if (op.kind == MicroOpKind::kDispatch) ++in_flight;
      EXPECT_LE(in_flight, 2);
      if (op.kind == MicroOpKind::kCombine) --in_flight;
    }
    EXPECT_EQ(in_flight, 0);
  }
}

TEST(BuildExpertParallelTest, DispatchesInTurnWaitForTheOneBefore) {
  for (const bool in_turn : {false, true}) {
    const MoeSchedule schedule = BuildExpertParallel({.micro_batches = 4, .shared_expert = true, .in_turn = in_turn});
    EXPECT_TRUE(Validate(schedule).ok()) << Validate(schedule);
    EXPECT_EQ(Order(schedule), "S0 H S1 C0 R0 S2 C1 R1 S3 C2 R2 C3 R3");
    int before = -1;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      const MicroOp& op = schedule.ops[i];
      if (op.kind != MicroOpKind::kDispatch) continue;
      EXPECT_EQ(std::count(op.deps.begin(), op.deps.end(), before), in_turn && before >= 0) << i;
      before = static_cast<int>(i);
    }
  }
}

// Each mistake is found and named.
TEST(ValidateTest, NamesWhatIsWrong) {
  const MoeSchedule good = BuildExpertParallel({.micro_batches = 2, .shared_expert = true});
  const auto broken = [&](const std::function<void(MoeSchedule*)>& change) {
    MoeSchedule schedule = good;
    change(&schedule);
    const absl::Status status = Validate(schedule);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto find = [](MoeSchedule* s, MicroOpKind kind, int nth = 0) -> MicroOp* {
    for (MicroOp& op : s->ops) {
      if (op.kind == kind && nth-- == 0) return &op;
    }
    return nullptr;
  };
  EXPECT_THAT(broken([](auto* s) { s->num_chunks = 0; }), HasSubstr("0 chunks"));
  EXPECT_THAT(broken([](auto* s) { s->ops[0].deps = {5}; }), HasSubstr("depends on op 5, which is not earlier"));
  EXPECT_THAT(broken([](auto* s) { s->ops[1].deps = {1}; }), HasSubstr("depends on op 1, which is not earlier"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kDispatch)->chunk = 2; }), HasSubstr("chunk 2 of 2"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kDispatch)->num_chunks = 3; }), HasSubstr("cuts rows into 3"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kDispatch, 1)->deps.clear(); }),
              HasSubstr("does not depend on a gate"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kExpert, 1)->deps.clear(); }),
              HasSubstr("does not depend on the dispatch"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kCombine)->deps = {0}; }),
              HasSubstr("does not depend on the experts"));
  EXPECT_THAT(broken([&](auto* s) { find(s, MicroOpKind::kCombine)->deps.pop_back(); }), HasSubstr("shared expert"));
  EXPECT_THAT(broken([&](auto* s) { s->ops.pop_back(); }),
              HasSubstr("chunk 1 is dispatched 1 times, computed 1 times, combined 0"));
}

TEST(RowsOfChunkTest, CoversEveryRowOnce) {
  for (int64_t rows : {0, 1, 2, 5, 7, 64}) {
    for (int n = 1; n <= 9; ++n) {
      int64_t next = 0;
      for (int chunk = 0; chunk < n; ++chunk) {
        const ChunkRange range = RowsOfChunk(rows, chunk, n);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.count, rows / n);
        EXPECT_LE(range.count, rows / n + 1);
        next += range.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

}  // namespace
}  // namespace switchyard::pipeline
