#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/jobs/reduce_policy.h"

namespace switchyard::jobs {
namespace {

// "0[0,3) 1[0,2) after 1 | …"
std::string Print(const std::vector<ReduceOp>& ops) {
  std::string text;
  for (const ReduceOp& op : ops) {
    if (!text.empty()) text += " | ";
    for (const ReducePiece& piece : op.pieces) {
      absl::StrAppend(&text, piece.tensor, "[", piece.begin, ",", piece.begin + piece.count, ") ");
    }
    absl::StrAppend(&text, "after ", op.after);
  }
  return text;
}

TEST(ReducePlanTest, TensorByTensor) {
  EXPECT_EQ(Print(PlanReduces({3, 0, 9}, 4, ReduceGrouping::kTensors, 8)), "0[0,3) after 0 | 2[0,9) after 2");
}

TEST(ReducePlanTest, BucketsAreFullBeforeTheyGo) {
  EXPECT_EQ(Print(PlanReduces({3, 2, 0, 9, 1}, 4, ReduceGrouping::kBuckets, 20)),
            "0[0,3) 1[0,2) after 1 | 3[0,9) after 3 | 4[0,1) after 4");
}

TEST(ReducePlanTest, PiecesAreEqualAndOfOneGradient) {
  EXPECT_EQ(Print(PlanReduces({3, 10, 4}, 4, ReduceGrouping::kPieces, 16)),
            "0[0,3) after 0 | 1[0,3) after 1 | 1[3,6) after 1 | 1[6,10) after 1 | 2[0,4) after 2");
}

TEST(ReducePlanTest, EveryElementIsSummedOnceAndNoOpGoesTooEarly) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < 60; ++i) elements.push_back(i * i % 37);
  for (const ReduceGrouping grouping : {ReduceGrouping::kTensors, ReduceGrouping::kBuckets, ReduceGrouping::kPieces}) {
    for (const int64_t bytes : {8, 24, 100, 1000, 100000}) {
      std::vector<int64_t> next(elements.size());
      int32_t before = 0;
      for (const ReduceOp& op : PlanReduces(elements, 8, grouping, bytes)) {
        EXPECT_LE(before, op.after);  // in the order in which gradients are complete
        before = op.after;
        for (const ReducePiece& piece : op.pieces) {
          EXPECT_LE(piece.tensor, op.after);
          EXPECT_EQ(piece.begin, next[piece.tensor]);
          EXPECT_GT(piece.count, 0);
          next[piece.tensor] += piece.count;
          if (grouping != ReduceGrouping::kPieces) continue;
          EXPECT_LE(piece.count * 8, bytes);
        }
      }
      EXPECT_EQ(next, elements);
    }
  }
}

TEST(ReducePlanTest, WhoMayGoWhen) {
  const AllToAllState idle, done = {.backward_done = true}, running = {.in_pair = true, .under_way = 1},
                            between = {.in_pair = true}, soon = {.imminent = true};
  const auto when = [&](ReduceRule rule) {
    std::string text;
    for (const auto& [name, state] :
         {std::make_pair("idle", idle), std::make_pair("running", running), std::make_pair("between", between),
          std::make_pair("soon", soon), std::make_pair("done", done)}) {
      if (MayReduce(rule, state)) absl::StrAppend(&text, name, " ");
    }
    return text;
  };
  EXPECT_EQ(when(ReduceRule::kAtOnce), "idle running between soon done ");
  EXPECT_EQ(when(ReduceRule::kBetweenPairs), "idle soon done ");
  EXPECT_EQ(when(ReduceRule::kAfterAllToAll), "idle between done ");
  EXPECT_EQ(when(ReduceRule::kAtTheEnd), "done ");
}

}  // namespace
}  // namespace switchyard::jobs
