#include "scheduler/jobs/chunk_decisions.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr int64_t kRows = 1000;
constexpr ChunkOptions kSearches = {.world = 2, .searches = true, .most = 4, .steps = 2};

int64_t Ns(int32_t chunks) { return chunks == 2 ? 50 : 60 + chunks; }

// Steps behind `done`, to `steps`; "3:1>4 tried 6:4>2 tried …".
std::string Drive(ChunkController* controller, int64_t steps, int64_t done = 0, int64_t (*ns)(int32_t) = &Ns) {
  std::string text;
  for (int64_t step = done + 1; step <= steps; ++step) {
    controller->AddStep(kRows, ns(controller->ChunksFor(kRows)));
    if (!controller->Decides(step)) continue;
    const ChunkDecision decision = controller->Propose(step, controller->Predicts(step) ? 0 : controller->MedianNs());
    controller->Adopt(decision);
    absl::StrAppend(&text, text.empty() ? "" : " ", step, ":", decision.from, ">", decision.to, " ",
                    ChunkReasonName(decision.reason));
  }
  return text;
}

constexpr char kWhole[] = "3:1>4 tried 6:4>2 tried 9:2>3 tried 12:3>2 found";

TEST(ChunkDecisionsTest, TriesAFewStepsOfEach) {
  ChunkController controller(kSearches);
  EXPECT_EQ(controller.ChunksFor(kRows), 1);
  EXPECT_EQ(Drive(&controller, 40), kWhole);
  EXPECT_EQ(controller.ChunksFor(kRows), 2);
}

// The first step with new buffers does not count.
TEST(ChunkDecisionsTest, TheMedianOfStepsBehindTheFirst) {
  ChunkController controller({.world = 2, .searches = true, .steps = 3});
  for (const int64_t ns : {900, 5, 7, 6}) {
    EXPECT_FALSE(controller.Decides(1));
    controller.AddStep(kRows, ns);
  }
  ASSERT_TRUE(controller.Decides(4));
  EXPECT_EQ(controller.MedianNs(), 6);
  EXPECT_EQ(controller.Propose(4, 8).ns, 8) << "the slowest rank's";
}

TEST(ChunkDecisionsTest, AReplayGoesTheSameWay) {
  ChunkController whole(kSearches);
  Drive(&whole, 40);
  for (int64_t from = 0; from <= 14; ++from) {
    ChunkController again(kSearches);
    ASSERT_TRUE(again.Replay(whole.decisions(), from).ok());
    // Whatever is measured now.
    Drive(&again, 40, from, [](int32_t chunks) -> int64_t { return 1000 - chunks; });
    EXPECT_EQ(again.decisions(), whole.decisions()) << from;
  }
  // A journal that ends in between is followed by what is measured then: the steps of a number count anew.
  ChunkController part(kSearches);
  ASSERT_TRUE(part.Replay(absl::MakeConstSpan(whole.decisions()).first(2), 4).ok());
  EXPECT_EQ(Drive(&part, 40, 4), "6:4>2 tried 9:2>3 tried 12:3>2 found");
  ChunkController behind(kSearches);
  ASSERT_TRUE(behind.Replay(absl::MakeConstSpan(whole.decisions()).first(2), 7).ok());
  EXPECT_EQ(Drive(&behind, 40, 7), "10:2>3 tried 13:3>2 found");
}

TEST(ChunkDecisionsTest, WhatWasMeasuredDecidesOnce) {
  ChunkController controller({.world = 2});
  EXPECT_TRUE(controller.Decides(0));
  EXPECT_EQ(controller.ChunksFor(kRows), 1);
  const ChunkDecision decision = {
      .world = 2, .rows = kRows, .to = 4, .ns = 3'000'000, .reason = ChunkReason::kMeasured, .why = "4 chunks 3 ms"};
  ASSERT_TRUE(controller.Follows(decision).ok());
  controller.Adopt(decision);
  EXPECT_EQ(controller.ChunksFor(kRows), 4);
  EXPECT_FALSE(controller.Decides(0));
  EXPECT_EQ(decision.ToString(),
            "after step 0: chunks 1 -> 4 of 1000 rows, some layers took 3 ms (measured: 4 chunks 3 ms)");
  EXPECT_EQ(ChunkReasonName(decision.reason), "measured");
  EXPECT_EQ(*DecodeChunkDecisions(EncodeChunkDecisions({&decision, 1})), std::vector<ChunkDecision>{decision});
  ChunkController again({.world = 2});
  ASSERT_TRUE(again.Replay({&decision, 1}, 0).ok());
  EXPECT_EQ(again.ChunksFor(kRows), 4);
  // Made by an attempt that began later: it comes again at its step.
  ChunkDecision later = decision;
  later.step = 6;
  ChunkController before({.world = 2});
  ASSERT_TRUE(before.Replay({&later, 1}, 4).ok());
  EXPECT_FALSE(before.Decides(4));
  EXPECT_EQ(before.ChunksFor(kRows), 1);
  EXPECT_TRUE(before.Predicts(6));
}

// Journals of releases in which a formula decided.
TEST(ChunkDecisionsTest, WhatAModelDecidedCountsAsMeasured) {
  const absl::StatusOr<std::vector<ChunkDecision>> old =
      DecodeChunkDecisions("step=0 world=2 rows=1000 from=1 to=4 ns=5 reason=model why=all-to-all 3 ms\n");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->at(0).reason, ChunkReason::kMeasured);
  EXPECT_EQ(old->at(0).why, "all-to-all 3 ms");
  ChunkController controller({.world = 2});
  ASSERT_TRUE(controller.Replay(*old, 0).ok());
  EXPECT_EQ(controller.ChunksFor(kRows), 4);
}

TEST(ChunkDecisionsTest, AJournalThatIsNotOurs) {
  ChunkController whole(kSearches);
  Drive(&whole, 40);
  const auto wrong = [&](auto change) {
    std::vector<ChunkDecision> journal = whole.decisions();
    change(&journal);
    return ChunkController(kSearches).Replay(journal, 5);
  };
  EXPECT_EQ(wrong([](auto* j) { (*j)[1].world = 3; }).code(), absl::StatusCode::kFailedPrecondition);
  const auto message = [&](auto change) {
    const absl::Status status = wrong(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto* j) { (*j)[1].from = 3; }), HasSubstr("does not follow from 4 chunks"));
  EXPECT_THAT(message([](auto* j) { (*j)[1].to = 3; }), HasSubstr("is not what the search says: 2, tried"));
  EXPECT_THAT(message([](auto* j) { (*j)[1].step = 3; }), HasSubstr("is not behind the one before it"));
  EXPECT_THAT(message([](auto* j) { (*j)[1].reason = ChunkReason::kMeasured; }),
              HasSubstr("is not what the search says"));
  EXPECT_THAT(message([](auto* j) { j->push_back(j->back()), j->back().step = 90, j->back().from = 2; }),
              HasSubstr("follows the end of its search"));
}

TEST(ChunkDecisionsTest, LinesComeBack) {
  ChunkController whole(kSearches);
  Drive(&whole, 40);
  std::vector<ChunkDecision> decisions = whole.decisions();
  decisions[0].why = "two\nlines";
  const std::string lines = EncodeChunkDecisions(decisions);
  const absl::StatusOr<std::vector<ChunkDecision>> back = DecodeChunkDecisions(lines);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, decisions);
  EXPECT_THAT(*DecodeChunkDecisions(""), SizeIs(0));
  for (const char* bad : {"step=1", "step=1 world=2 rows=0 from=1 to=4 ns=5 reason=tried why=\n",
                          "step=1 world=2 rows=9 from=1 to=4 ns=5 reason=none why=\n",
                          "step=01 world=2 rows=9 from=1 to=4 ns=5 reason=tried why=\n",
                          "step=1 world=2 rows=9 from=1 to=4 ns=5 more=1 reason=tried why=\n"}) {
    EXPECT_EQ(DecodeChunkDecisions(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace switchyard::jobs
