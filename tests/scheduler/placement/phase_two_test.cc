#include "scheduler/placement/per_step/phase_two.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/per_step/decision_digest.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/placement/route/slot_table.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LayerCostsTest, InPicoseconds) {
  EXPECT_EQ(Picoseconds(2e-6), 2'000'000);
  EXPECT_EQ(Picoseconds(-1), 0);
  EXPECT_EQ(Picoseconds(1e9), Picoseconds(86400)) << "a day at most";
}

TEST(LayerCostsTest, FewRowsTakeAsLongAsTheWeights) {
  const LayerCosts costs{.weights_ps = 500, .row_ps = 100};
  EXPECT_EQ(costs.OfExpert(0), 0) << "it is not read";
  EXPECT_EQ(costs.OfExpert(1), 500);
  EXPECT_EQ(costs.OfExpert(5), 500);
  EXPECT_EQ(costs.OfExpert(6), 600);
  EXPECT_EQ(LayerCosts{.row_ps = INT64_MAX}.OfExpert(INT64_MAX), LayerCosts::kMostOfExpert);
}

std::string TextOf(const MoveChoice& choice) {
  return absl::StrCat(choice.reason == MoveReason::kPays      ? "pays"
                      : choice.reason == MoveReason::kTooDear ? "too dear"
                                                              : "other",
                      ": saves ", choice.saved_ps / 1000000, " us, delays ", choice.delayed_ps / 1000000, " us");
}

TEST(PhaseTwoTest, AMoveHasToPay) {
  constexpr int64_t kUs = 1'000'000;
  MoveQuestion question{.total_ps = 800 * kUs,
                        .num_devices = 4,
                        .present_ps = 320 * kUs,
                        .candidate_ps = 220 * kUs,
                        .delayed_ps = 100 * kUs};
  EXPECT_EQ(TextOf(ChooseMove(question)), "too dear: saves 100 us, delays 100 us");
  question.candidate_ps = 218 * kUs;
  EXPECT_EQ(TextOf(ChooseMove(question)), "pays: saves 102 us, delays 100 us");
  question.delayed_ps = 200 * kUs;
  EXPECT_EQ(TextOf(ChooseMove(question)), "too dear: saves 102 us, delays 200 us");
  question.delayed_ps = -5;
  EXPECT_EQ(TextOf(ChooseMove(question)), "pays: saves 102 us, delays 0 us");
}

TEST(PhaseTwoTest, AnEvenSplitAsksForNothing) {
  MoveQuestion question{.total_ps = 400, .num_devices = 4, .present_ps = 101, .candidate_ps = 100};
  EXPECT_EQ(ChooseMove(question).reason, MoveReason::kPays);
  question.even_enough = popularity::kRow / 100 - 1;
  EXPECT_EQ(ChooseMove(question).reason, MoveReason::kPays);
  question.even_enough = popularity::kRow / 100 + 1;
  EXPECT_EQ(ChooseMove(question).reason, MoveReason::kEvenEnough);
  question = {.total_ps = 400, .num_devices = 4, .present_ps = 150, .candidate_ps = 150};
  EXPECT_EQ(ChooseMove(question).reason, MoveReason::kNoBetter);
}

TEST(PlacementModeTest, NamesGoThereAndBack) {
  for (const char* name : {"static", "static+spare", "lina", "agreed", "ideal", "no_estimate", "no_finetune", "auto"}) {
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
