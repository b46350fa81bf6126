#include "scheduler/placement/per_step/phase_two.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/per_step/decision_digest.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/placement/route/slot_table.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PhaseTwoTest, CostsInPicoseconds) {
  const MoveCosts costs =
      CostsOf({.expert_bytes = 1e6, .copy_bytes_per_s = 1e10, .seconds_per_row = 2e-6, .layer_seconds = 5e-5});
  EXPECT_EQ(costs, (MoveCosts{.copy_ps = 100'000'000, .row_ps = 2'000'000, .layer_ps = 50'000'000}));
  EXPECT_EQ(CostsOf({}), MoveCosts{});
}

std::string TextOf(const MoveChoice& choice) {
  return absl::StrCat(choice.reason == MoveReason::kPays      ? "pays"
                      : choice.reason == MoveReason::kTooDear ? "too dear"
                                                              : "other",
                      ": saves ", choice.saved_ps / 1000000, " us, delays ", choice.delayed_ps / 1000000, " us");
}

TEST(PhaseTwoTest, AMoveHasToPay) {
  const MoveCosts costs{.copy_ps = 100'000'000, .row_ps = 2'000'000, .layer_ps = 60'000'000};
  MoveQuestion question{
      .total_rows = 400, .num_devices = 4, .present_busiest = 160, .candidate_busiest = 110, .copies = 1};
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "too dear: saves 100 us, delays 100 us");
  question.candidate_busiest = 109;
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "pays: saves 102 us, delays 100 us");
  question.copies = 2;
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "too dear: saves 102 us, delays 200 us");
  question.layers_ahead = 2;  // 120 us are hidden
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "pays: saves 102 us, delays 80 us");
  question.layers_ahead = 4;
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "pays: saves 102 us, delays 0 us");
  question.layers_ahead = 0;
  question.horizon = 3;
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "pays: saves 306 us, delays 200 us");
  question.unit = 1000;
  EXPECT_EQ(TextOf(ChooseMove(question, costs)), "too dear: saves 0 us, delays 200 us");
}

TEST(PhaseTwoTest, AnEvenSplitAsksForNothing) {
  const MoveCosts costs{.copy_ps = 1, .row_ps = 1000};
  MoveQuestion question{
      .total_rows = 400, .num_devices = 4, .present_busiest = 101, .candidate_busiest = 100, .copies = 1};
  EXPECT_EQ(ChooseMove(question, costs).reason, MoveReason::kPays);
  question.even_enough = popularity::kRow / 100 - 1;
  EXPECT_EQ(ChooseMove(question, costs).reason, MoveReason::kPays);
  question.even_enough = popularity::kRow / 100 + 1;
  EXPECT_EQ(ChooseMove(question, costs).reason, MoveReason::kEvenEnough);
  question = {.total_rows = 400, .num_devices = 4, .present_busiest = 150, .candidate_busiest = 150, .copies = 1};
  EXPECT_EQ(ChooseMove(question, costs).reason, MoveReason::kNoBetter);
}

TEST(PlacementModeTest, NamesGoThereAndBack) {
  for (const char* name :
       {"static", "static+spare", "central", "agreed", "oracle", "ideal", "no_estimate", "no_finetune", "auto"}) {
    const absl::StatusOr<PlacementMode> mode = ParsePlacementMode(name);
    ASSERT_TRUE(mode.ok());
    EXPECT_EQ(NameOf(*mode), name);
  }
  EXPECT_EQ(ParsePlacementMode("agreed").value(), PlacementMode::kAgreed);
  EXPECT_THAT(ParsePlacementMode("best").status().message(), HasSubstr("\"best\" is none of static, static+spare"));
}

TEST(SlotTableTest, ACopyIsAwaitedOnceAndOnlyIfItGetsRows) {
  SlotTable table({.num_experts = 2, .slots = {{0, kEmptySlot}, {1, kEmptySlot}}});
  const std::vector<SlotChange> changes = {{0, 1, 1}, {1, 1, 0}};
  table.Change(changes, 7);
  EXPECT_EQ(table.placement().ToString(), "[0 1] [1 0]");
  EXPECT_EQ(table.replicas().num_replicas(), 4);
  const std::vector<int32_t> rows = {10, 0, 10, 0};  // expert 0 alone: half of it on device 1
  const RowCounts counts{.num_ranks = 2, .num_experts = 2, .rows = rows};
  EXPECT_THAT(table.Await(SplitByCounts(counts, table.replicas())), ElementsAre(AwaitedCopy{1, 1, 7}));
  EXPECT_THAT(table.Await(SplitByCounts(counts, table.replicas())), IsEmpty());
  EXPECT_EQ(table.in_flight()[0][1], 7);  // nobody needed it yet
  EXPECT_EQ(MostCopies(changes), 1);
  EXPECT_EQ(MostCopies({{0, 1, 1}, {0, 2, 3}, {1, 1, kEmptySlot}, {1, 2, 0}}), 2);
}

TEST(DecisionDigestTest, TheFirstFieldThatDiffersIsNamed) {
  DecisionDigest a, b;
  for (DecisionDigest* digest : {&a, &b}) digest->Mix(DecisionField::kCounts, absl::MakeConstSpan({1, 2, 3}));
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_EQ(DescribeMismatch(a, 0, b, 3), "");
  a.Mix(DecisionField::kSplit, 5);
  b.Mix(DecisionField::kSplit, 6);
  EXPECT_NE(a.hash(), b.hash());
  EXPECT_THAT(DescribeMismatch(a, 0, b, 3),
              testing::MatchesRegex("split: 0x[0-9a-f]+ on rank 0, 0x[0-9a-f]+ on rank 3"));
  b.Mix(DecisionField::kEstimates, 1);
  EXPECT_THAT(DescribeMismatch(a, 0, b, 3), testing::MatchesRegex("estimates: .* \\(also: split\\)"));
  DecisionDigest c, d;  // order matters
  c.Mix(DecisionField::kCounts, absl::MakeConstSpan({1, 2}));
  d.Mix(DecisionField::kCounts, absl::MakeConstSpan({2, 1}));
  EXPECT_FALSE(c == d);
}

}  // namespace
}  // namespace switchyard::placement
