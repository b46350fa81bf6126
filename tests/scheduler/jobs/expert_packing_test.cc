#include "scheduler/jobs/expert_packing.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

// The times of a micro-op: an all-to-all takes so many times as long as experts' products.
PackingTimes Ratio(int64_t ratio) { return {.experts_ns = 1000, .all_to_all_ns = 2000 * ratio, .micro_ops = 10}; }

// The steps behind `done`, to `steps`, whose all-to-alls halve with each doubling; "10:1>2 14:2>4 18:4>4 covered".
std::string Drive(PackingController* controller, int64_t ratio, int64_t steps, int64_t done = 0) {
  std::string text;
  for (int64_t step = done + 1; step <= steps; ++step) {
    if (!controller->Decides(step)) continue;
    const PackingDecision decision = controller->Propose(step, Ratio(ratio / controller->packing()));
    controller->Adopt(decision);
    absl::StrAppend(&text, text.empty() ? "" : " ", step, ":", decision.from, ">", decision.to,
                    decision.reason == PackingReason::kGrows ? "" : " ",
                    decision.reason == PackingReason::kGrows ? "" : PackingReasonName(decision.reason));
  }
  return text;
}

std::string RunOf(int32_t world, int64_t ratio, int32_t most = INT32_MAX) {
  PackingController controller({.world = world, .most = most});
  return Drive(&controller, ratio, 100);
}

TEST(ExpertPackingTest, DoublesUntilExpertsCoverAllToAlls) {
  EXPECT_EQ(RunOf(16, 1), "10:1>1 covered");
  EXPECT_EQ(RunOf(16, 2), "10:1>2 14:2>2 covered");
  EXPECT_EQ(RunOf(16, 4), "10:1>2 14:2>4 18:4>4 covered");
  EXPECT_EQ(RunOf(16, 1000), "10:1>2 14:2>4 18:4>8 22:8>16 26:16>16 ranks");
}

TEST(ExpertPackingTest, PowersOfTwoThatDivideTheRanks) {
  EXPECT_EQ(RunOf(1, 1000), "10:1>1 ranks");
  EXPECT_EQ(RunOf(3, 1000), "10:1>1 ranks");
  EXPECT_EQ(RunOf(6, 1000), "10:1>2 14:2>2 ranks");
  EXPECT_EQ(RunOf(12, 1000), "10:1>2 14:2>4 18:4>4 ranks");
  EXPECT_EQ(RunOf(16, 1000, 4), "10:1>2 14:2>4 18:4>4 ranks");
  EXPECT_EQ(RunOf(16, 1000, 7), "10:1>2 14:2>4 18:4>4 ranks");
  EXPECT_EQ(MostPacking(24), 8);
}

// To the nanosecond, and where there is nothing to measure.
TEST(ExpertPackingTest, StaysWhereTimesAreEqual) {
  const PackingController controller({.world = 4});
  const auto propose = [&](int64_t experts_ns, int64_t all_to_all_ns) {
    return controller.Propose(10, {.experts_ns = experts_ns, .all_to_all_ns = all_to_all_ns, .micro_ops = 1}).to;
  };
  EXPECT_EQ(propose(50, 100), 1);
  EXPECT_EQ(propose(50, 101), 2);
  EXPECT_EQ(propose(0, 0), 1);
  EXPECT_EQ(propose(INT64_MAX, INT64_MAX), 1);
  EXPECT_EQ(propose(0, INT64_MAX), 2);
}

// The same, and a step takes `step_ns` on each of 4 ranks in 2 steps.
PackingTimes Steps(int64_t ratio, int64_t step_ns) {
  PackingTimes times = Ratio(ratio);
  times.step_ns = 8 * step_ns;
  times.steps = 8;
  return times;
}

// The exposed communication of Transformer-XL on 16 workers, by the critical path, whose experts would be packed
// until 4.
TEST(ExpertPackingTest, ADoublingThatDoesNotHelpIsUndone) {
  const std::map<int32_t, int64_t> exposed_ms = {{1, 400}, {2, 351}, {4, 412}, {8, 1146}};
  PackingController controller({.world = 16});
  std::vector<std::string> reported;
  for (int64_t step = 1; step <= 100; ++step) {
    if (!controller.Decides(step)) continue;
    const int32_t packing = controller.packing();
    controller.Adopt(controller.Propose(step, Steps(8 / packing, (1700 + exposed_ms.at(packing)) * 1'000'000)));
    reported.push_back(controller.decisions().back().ToString());
  }
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_NE(reported[0].find("packing 1 -> 2 of 16 ranks"), std::string::npos) << reported[0];
  EXPECT_NE(reported[1].find("packing 2 -> 4 of 16 ranks"), std::string::npos) << reported[1];
  EXPECT_EQ(
      reported[2],
      "after step 18: packing 4 -> 2 of 16 ranks, all-to-all 0.0002 ms, experts 0.0001 ms a micro-op, a step 2112 "
      "ms, 0 ms of it waiting for sums (undone: a step took 2051 ms with packing 2)");
  EXPECT_TRUE(controller.finalized());
  // By all-to-alls and experts alone, as in the paper.
  EXPECT_EQ(RunOf(16, 4), "10:1>2 14:2>4 18:4>4 covered");
}

TEST(ExpertPackingTest, ADoublingMustMakeStepsShorter) {
  const auto second = [](PackingTimes before, PackingTimes behind) {
    PackingController controller({.world = 16});
    controller.Adopt(controller.Propose(10, before));
    return controller.Propose(14, behind).to;
  };
  EXPECT_EQ(second(Steps(100, 50), Steps(100, 49)), 4);
  EXPECT_EQ(second(Steps(100, 50), Steps(100, 50)), 1);
  EXPECT_EQ(second(Steps(100, 50), Steps(1, 51)), 1) << "covered, but no shorter";
  EXPECT_EQ(second(Steps(100, 50), Steps(1, 49)), 2);
  EXPECT_EQ(second(Steps(100, 50), Ratio(100)), 4) << "not measured";
  EXPECT_EQ(second(Ratio(100), Steps(100, 50)), 4);
  PackingTimes more = Steps(100, 50);  // by the step, however many were measured
  more += Steps(100, 48);
  EXPECT_EQ(second(Steps(100, 50), more), 4);
  const PackingTimes longest = {.all_to_all_ns = 100, .step_ns = INT64_MAX, .steps = INT64_MAX};
  EXPECT_EQ(second(longest, longest), 1);
}

// Each step with more replicas has to be shorter than each before: means may differ by chance.
TEST(ExpertPackingTest, ADoublingIsKeptBeyondTheNoise) {
  const auto steps = [](std::vector<int64_t> each) {  // of each of 2 ranks, which differ by 1
    PackingTimes all;
    for (const int64_t rank : {0, 1}) {
      PackingTimes of_rank;
      for (const int64_t ns : each) {
        PackingTimes one = Ratio(100);
        one.step_ns = one.least_step_ns = one.most_step_ns = ns + rank;
        one.steps = 1;
        of_rank += one;
      }
      all.experts_ns += of_rank.experts_ns;
      all.all_to_all_ns += of_rank.all_to_all_ns;
      all.micro_ops += of_rank.micro_ops;
      all.step_ns += of_rank.step_ns;
      all.steps += of_rank.steps;
      all.least_step_ns += of_rank.least_step_ns;
      all.most_step_ns += of_rank.most_step_ns;
    }
    return all;
  };
  const auto second = [&](const PackingTimes& before, const PackingTimes& behind) {
    PackingController controller({.world = 2});
    controller.Adopt(controller.Propose(10, before));
    return controller.Propose(14, behind);
  };
  EXPECT_EQ(second(steps({50, 60, 55}), steps({49, 48, 47})).to, 2);
  EXPECT_EQ(second(steps({50, 60, 55}), steps({50, 40, 40})).to, 1) << "shorter by means only";
  EXPECT_EQ(second(steps({50'000'000, 60'000'000}), steps({51'000'000, 41'000'000})).why,
            "a step took 55 ms (50 ms to 60 ms) with packing 1");
  EXPECT_EQ(second(steps({50, 60}), Steps(100, 54)).to, 2) << "of steps whose range is not known";
  const PackingDecision decision = second(steps({50, 60, 55}), steps({49, 48, 47}));
  const std::string line = EncodePackingDecision(decision);
  EXPECT_NE(line.find(" steps=6 least_step_ns=95 most_step_ns=99 reason=ranks"), std::string::npos) << line;
  EXPECT_EQ(*DecodePackingDecision(line), decision);
  for (size_t cut = 0; cut < line.size(); ++cut) EXPECT_FALSE(DecodePackingDecision(line.substr(0, cut)).ok()) << cut;
}

TEST(ExpertPackingTest, ItMayBeginWithReplicas) {
  const PackingController controller({.world = 6, .begin = 3});
  EXPECT_EQ(controller.packing(), 3);
}

TEST(ExpertPackingTest, UndoneAtTheEndOfTheRanks) {
  PackingController controller({.world = 4});
  controller.Adopt(controller.Propose(10, Steps(100, 50)));
  controller.Adopt(controller.Propose(14, Steps(100, 40)));
  const PackingDecision last = controller.Propose(18, Steps(100, 45));
  EXPECT_EQ(last.reason, PackingReason::kUndone);
  EXPECT_EQ(last.to, 2);
  controller.Adopt(last);
  EXPECT_FALSE(controller.Decides(22));
  // A journal may have this, but only behind a doubling.
  PackingController again({.world = 4});
  ASSERT_TRUE(again.Replay(controller.decisions(), 15).ok());
  EXPECT_EQ(again.packing(), 4);
  again.Adopt(again.Propose(18, Steps(100, 1)));
  EXPECT_EQ(again.decisions(), controller.decisions());
  PackingDecision first = last;
  first.step = 10;
  EXPECT_NE(PackingController({.world = 4}).Replay({first}, 0).message().find("follows no doubling"),
            std::string::npos);
}

TEST(ExpertPackingTest, NeverMovesAgainOnceItStays) {
  PackingController controller({.world = 8});
  EXPECT_EQ(Drive(&controller, 1, 10), "10:1>1 covered");
  EXPECT_TRUE(controller.finalized());
  for (int64_t step = 11; step < 100; ++step) {
    EXPECT_FALSE(controller.Decides(step));
    EXPECT_FALSE(controller.Measures(step));
  }
}

TEST(ExpertPackingTest, MeasuresTheStepsBeforeADecision) {
  PackingController controller({.world = 8});
  for (int64_t step = 1; step <= 20; ++step) EXPECT_EQ(controller.Measures(step), step > 6) << step;
  controller.Adopt(controller.Propose(10, Ratio(100)));
  for (int64_t step = 11; step <= 20; ++step) EXPECT_EQ(controller.Measures(step), step > 11) << "buffers are new";
  PackingController always({.world = 8, .first_step = 1, .every_steps = 1});
  always.Adopt(always.Propose(1, Ratio(100)));
  EXPECT_TRUE(always.Measures(2)) << "there is no other";
}

TEST(ExpertPackingTest, ARefusalIsTheEnd) {
  PackingController controller({.world = 8});
  const PackingDecision proposal = controller.Propose(10, Ratio(100));
  EXPECT_EQ(proposal.to, 2);
  const PackingDecision refused = PackingController::Refused(proposal, "rank 3: no room");
  EXPECT_EQ(refused.ToString(),
            "after step 10: packing 1 -> 1 of 8 ranks, all-to-all 0.01 ms, experts 0.0001 ms a micro-op (refused: rank "
            "3: no room)");
  controller.Adopt(refused);
  EXPECT_EQ(controller.packing(), 1);
  EXPECT_TRUE(controller.finalized());
}

TEST(ExpertPackingTest, DecisionsAreLines) {
  PackingController controller({.world = 8});
  Drive(&controller, 2, 20);
  std::vector<PackingDecision> decisions = controller.decisions();
  decisions.push_back(PackingController::Refused(decisions[0], "rank 1: \"no\" room=\n  7 reason=\xff"));
  const std::string lines = EncodePackingDecisions(decisions);
  EXPECT_EQ(lines.substr(0, lines.find('\n')),
            "step=10 world=8 from=1 to=2 experts_ns=1000 all_to_all_ns=4000 micro_ops=10 step_ns=0 sums_ns=0 "
            "steps=0 reason=grows why=");
  const auto again = DecodePackingDecisions(lines);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, decisions);
  EXPECT_EQ(again->back().why, decisions.back().why);
  EXPECT_EQ(DecodePackingDecisions("")->size(), 0u);
}

TEST(ExpertPackingTest, OtherLinesAreNone) {
  const std::string line = EncodePackingDecision(PackingController({.world = 8}).Propose(10, Ratio(2)));
  ASSERT_TRUE(DecodePackingDecision(line).ok());
  for (size_t cut = 0; cut < line.size(); ++cut) EXPECT_FALSE(DecodePackingDecision(line.substr(0, cut)).ok()) << cut;
  std::string negative = line;
  negative.replace(negative.find("micro_ops="), 10, "micro_ops=-");
  for (const std::string& other : {absl::StrCat(" ", line), absl::StrCat(line, "\\q"), "step=+" + line.substr(5),
                                   "step=0" + line.substr(5), negative}) {
    const absl::Status status = DecodePackingDecision(other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_NE(status.message().find("is no decision"), std::string::npos) << status;
  }
  EXPECT_FALSE(DecodePackingDecisions(line).ok());  // cut short
  EXPECT_FALSE(DecodePackingDecisions(line + "\n\n").ok());
}

TEST(ExpertPackingTest, AJournalIsFollowedWhateverIsMeasured) {
  PackingController first({.world = 16});
  Drive(&first, 4, 30);
  for (int64_t resumed = 0; resumed <= 20; ++resumed) {
    PackingController second({.world = 16});
    ASSERT_TRUE(second.Replay({}, resumed).ok());  // nothing was adopted yet
    ASSERT_TRUE(second.Replay(first.decisions(), resumed).ok());
    EXPECT_EQ(second.packing(), resumed < 10 ? 1 : resumed < 14 ? 2 : 4);
    for (int64_t step = resumed + 1; step <= 30; ++step) {
      if (second.Decides(step)) second.Adopt(second.Propose(step, Ratio(1000)));
    }
    EXPECT_EQ(second.decisions(), first.decisions()) << resumed;
  }
}

TEST(ExpertPackingTest, BehindItsJournalItMeasuresAgain) {
  PackingController first({.world = 16});
  Drive(&first, 1000, 14);
  PackingController second({.world = 16});
  ASSERT_TRUE(second.Replay(first.decisions(), 12).ok());
  EXPECT_FALSE(second.Predicts(13));
  EXPECT_TRUE(second.Predicts(14));
  EXPECT_EQ(Drive(&second, 8, 30, 12), "14:2>4 18:4>8 22:8>8 covered");
}

// Not by the steps of another start: as many as it takes are done first.
TEST(ExpertPackingTest, DecidesWhenItHasMeasured) {
  PackingController first({.world = 16});
  Drive(&first, 1000, 10);
  PackingController second({.world = 16});
  ASSERT_TRUE(second.Replay(first.decisions(), 12).ok());
  EXPECT_FALSE(second.Measures(13));
  EXPECT_TRUE(second.Measures(14));
  EXPECT_EQ(Drive(&second, 8, 30, 12), "18:2>4 22:4>8 26:8>8 covered") << "not after step 14";
  // And again so.
  PackingController third({.world = 16});
  ASSERT_TRUE(third.Replay(second.decisions(), 11).ok());
  EXPECT_EQ(Drive(&third, 1, 30, 11), "18:2>4 22:4>8 26:8>8 covered");
}

TEST(ExpertPackingTest, RefusesJournalsThatItCannotHaveWritten) {
  PackingController first({.world = 16});
  Drive(&first, 4, 30);
  const std::vector<PackingDecision> good = first.decisions();
  const auto replay = [&](int32_t world, const std::vector<PackingDecision>& journal) {
    PackingController second({.world = world});
    const absl::Status status = second.Replay(journal, 100);
    EXPECT_EQ(second.packing(), status.ok() ? 4 : 1);
    return status;
  };
  ASSERT_TRUE(replay(16, good).ok());
  const absl::Status other = replay(8, good);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("packing: a decision for 16 ranks, there are 8: after step 10"), std::string::npos);
  const absl::Status more = PackingController({.world = 16, .most = 2}).Replay(good, 100);
  EXPECT_NE(more.message().find("is more than the ranks allow"), std::string::npos) << more;
  const auto edited = [&](size_t i, auto edit) {
    std::vector<PackingDecision> journal = good;
    edit(&journal[i]);
    return replay(16, journal).code();
  };
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(edited(0, [](PackingDecision* d) { d->step = 11; }), kInvalid);
  EXPECT_EQ(edited(1, [](PackingDecision* d) { d->step = 10; }), kInvalid);
  EXPECT_EQ(edited(1, [](PackingDecision* d) { d->from = 1; }), kInvalid);
  EXPECT_EQ(edited(0, [](PackingDecision* d) { d->to = 4; }), kInvalid);
  EXPECT_EQ(edited(0, [](PackingDecision* d) { d->reason = PackingReason::kCovered; }), kInvalid);
  EXPECT_EQ(replay(16, {good[1]}).code(), kInvalid);
  EXPECT_EQ(replay(16, {good[0], good[1], good[2], good[2]}).code(), kInvalid);
}

}  // namespace
}  // namespace switchyard::jobs
