// By hand: when ops begin and end, and what collectives that meet on a link get of it.
#include "scheduler/simulator/event_simulator.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/simulator/chrome_trace.h"

namespace switchyard::simulator {
namespace {

using testing::HasSubstr;

SimOp Compute(double seconds, std::vector<int> deps = {}) {
  return {.name = "C", .kind = SimOpKind::kCompute, .seconds = seconds, .deps = std::move(deps)};
}
SimOp Copy(double seconds, std::vector<int> deps = {}) {
  return {.name = "M", .kind = SimOpKind::kCopy, .seconds = seconds, .deps = std::move(deps)};
}
SimOp Join(int collective, std::vector<int> deps = {}) {
  return {.name = "S", .kind = SimOpKind::kCollective, .collective = collective, .deps = std::move(deps)};
}

SimResult Simulated(const SimInput& input) {
  const absl::StatusOr<SimResult> result = Simulate(input);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : SimResult();
}

// "begin-end begin-end", of a rank.
std::string Times(const SimResult& result, size_t rank = 0) {
  std::string text;
  for (const SimInterval& op : result.ops[rank]) absl::StrAppend(&text, text.empty() ? "" : " ", op.begin, "-", op.end);
  return text;
}

TEST(EventSimulatorTest, ComputingWaitsForWhatItDependsOnAlone) {
  // The copies follow each other beside what is computed; op 3 needs the second.
  const SimResult result = Simulated({.ranks = {{Copy(2), Copy(3), Compute(1), Compute(1, {1}), Compute(1)}}});
  EXPECT_EQ(Times(result), "0-2 2-5 0-1 5-6 6-7");
  EXPECT_EQ(result.seconds, 7);
}

TEST(EventSimulatorTest, ACollectiveBeginsWhenAllHaveComeToIt) {
  const SimInput input = {.links = {10},
                          .collectives = {{.latency = 0.5, .uses = {{0, 20}}}},
                          .ranks = {{Join(0), Compute(1, {0})}, {Compute(3), Join(0)}}};
  const SimResult result = Simulated(input);
  EXPECT_EQ(Times(result, 0), "3-5.5 5.5-6.5");
  EXPECT_EQ(Times(result, 1), "0-3 3-5.5");
}

TEST(EventSimulatorTest, CollectivesOfAQueueFollowEachOther) {
  SimInput input = {.links = {10, 10},
                    .collectives = {{.uses = {{0, 20}}}, {.uses = {{1, 10}}}},
                    .ranks = {{Join(0), Join(1), Compute(1, {1})}}};
  EXPECT_EQ(Times(Simulated(input)), "0-2 2-3 3-4");
  input.collectives[1].queue = 1;
  EXPECT_EQ(Times(Simulated(input)), "0-2 0-1 1-2");
}

TEST(EventSimulatorTest, ThoseThatMeetOnALinkShareIt) {
  // Both have 5 a second until the smaller is over at 2; the rest of the other then has all.
  const SimInput input = {.links = {10},
                          .collectives = {{.uses = {{0, 10}}}, {.uses = {{0, 30}}, .queue = 1}},
                          .ranks = {{Join(0), Join(1)}}};
  EXPECT_EQ(Times(Simulated(input)), "0-2 0-4");
}

TEST(EventSimulatorTest, WhatOneCannotUseTheOtherGets) {
  // The first is held back by link 1 to 2 a second, so the second has 8.
  const SimInput input = {.links = {10, 2},
                          .collectives = {{.uses = {{0, 10}, {1, 10}}}, {.uses = {{0, 40}}, .queue = 1}},
                          .ranks = {{Join(0), Join(1)}}};
  EXPECT_EQ(Times(Simulated(input)), "0-5 0-5");
}

TEST(EventSimulatorTest, ClassesShareByWeightsOrInOrder) {
  SimInput input = {.links = {10},
                    .collectives = {{.uses = {{0, 15}}}, {.uses = {{0, 15}}, .queue = 1, .traffic_class = 1}},
                    .ranks = {{Join(0), Join(1)}},
                    .rules = {.weights = {3, 1}}};
  // 7.5 and 2.5 a second until 2; then 10 left at 10.
  EXPECT_EQ(Times(Simulated(input)), "0-2 0-3");
  input.rules = {.weights = {1, 1}, .strict = true};
  EXPECT_EQ(Times(Simulated(input)), "0-1.5 0-3");
  // While both are there the link has half: 1.5 becomes 3, then 15 at 10.
  input.rules.efficiency = 0.5;
  EXPECT_EQ(Times(Simulated(input)), "0-3 0-4.5");
}

TEST(EventSimulatorTest, NobodyKeepsWhatAnotherCouldHaveHad) {
  // The third is held back by link 2 to 1 a second; the first two share link 0 evenly, as link 1 holds neither back.
  const SimInput input = {.links = {10, 6, 1},
                          .collectives = {{.uses = {{0, 10}}},
                                          {.uses = {{0, 10}, {1, 10}}, .queue = 1},
                                          {.uses = {{1, 1}, {2, 1}}, .queue = 2}},
                          .ranks = {{Join(0), Join(1), Join(2)}}};
  EXPECT_EQ(Times(Simulated(input)), "0-2 0-2 0-1");
}

// Twelve collectives over four links take at least what the fullest link needs, and no link stands still for long.
TEST(EventSimulatorTest, LinksAreUsed) {
  SimInput input = {.links = {4, 8, 2, 4}, .ranks = {{}}};
  std::vector<double> on_link(input.links.size(), 0);
  for (int i = 0; i < 12; ++i) {
    Collective collective = {.latency = 0.01 * i, .queue = i};
    for (int link = i % 3; link < 4; link += 1 + i % 2) {
      collective.uses.push_back({link, 3.0 + i});
      on_link[static_cast<size_t>(link)] += 3.0 + i;
    }
    input.collectives.push_back(collective);
    input.ranks[0].push_back(Join(i));
  }
  double fullest = 0;
  for (size_t link = 0; link < input.links.size(); ++link)
    fullest = std::max(fullest, on_link[link] / input.links[link]);
  const double seconds = Simulated(input).seconds;
  EXPECT_GE(seconds, fullest);
  EXPECT_LE(seconds, fullest * 1.2);
}

TEST(EventSimulatorTest, SaysWhatCannotBe) {
  const auto error = [](const SimInput& input) { return std::string(Simulate(input).status().message()); };
  EXPECT_EQ(error({.ranks = {{Compute(1, {0})}}}), "simulator: op 0 (C) of rank 0: depends on op 0");
  EXPECT_EQ(error({.ranks = {{Compute(-1)}}}), "simulator: op 0 (C) of rank 0: takes -1 seconds");
  EXPECT_EQ(error({.ranks = {{Join(0)}}}), "simulator: op 0 (S) of rank 0: is of collective 0 of 0");
  EXPECT_EQ(error({.collectives = {{}}, .ranks = {{Join(0), Join(0)}}}),
            "simulator: op 1 (S) of rank 0: is a second one of collective 0");
  EXPECT_EQ(error({.links = {0}}), "simulator: link 0 has 0 bytes a second");
  EXPECT_EQ(error({.collectives = {{.uses = {{0, 1}}}}}), "simulator: collective 0 uses link 0 of 0");
  EXPECT_EQ(error({.links = {1}, .collectives = {{.uses = {{0, 1}, {0, 2}}}}}),
            "simulator: collective 0 uses a link twice");
  EXPECT_EQ(error({.collectives = {{}}}), "simulator: collective 0 has no members");
  EXPECT_EQ(error({.rules = {.efficiency = 0}}), "simulator: efficiency 0 is outside (0, 1]");
  EXPECT_EQ(error({.collectives = {{.traffic_class = 1}}, .ranks = {{Join(0)}}}),
            "simulator: collective 0 is of class 1 of 1");
  // Two ranks that come to two collectives of a queue in different orders.
  EXPECT_THAT(error({.collectives = {{}, {}}, .ranks = {{Join(0), Join(1)}, {Join(1), Join(0)}}}),
              HasSubstr("op 0 (S) of rank 0 is never over: ranks come to their collectives in different orders"));
}

TEST(ChromeTraceTest, HasEachOpInItsRow) {
  const SimInput input = {
      .links = {1}, .collectives = {{.uses = {{0, 2}}, .queue = 1}}, .ranks = {{Compute(1), Join(0), Copy(3)}}};
  const std::string trace = ChromeTrace(input, Simulated(input));
  EXPECT_THAT(trace, HasSubstr(R"("name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0"})"));
  EXPECT_THAT(trace, HasSubstr(R"("args":{"name":"collectives 1"})"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"C","pid":0,"tid":0,"ts":0.000,"dur":1000000.000)"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"S","pid":0,"tid":3,"ts":1000000.000,"dur":2000000.000)"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"M","pid":0,"tid":1,"ts":1000000.000,"dur":3000000.000)"));
}

}  // namespace
}  // namespace switchyard::simulator
