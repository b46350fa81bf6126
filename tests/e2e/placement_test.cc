// --placement: the same tokens in every mode while experts move; errors for impossible placements.
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"
#include "tests/huge_shared_pages.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

using PlacementTest = ExpertServersTest;

TEST_F(PlacementTest, TheTokensOfExpertsThatStay) {
  const auto resident = Start(1, {});
  ASSERT_NE(resident, nullptr);
  const auto expected = Tokens(resident.get());
  EXPECT_EQ(Sum(resident.get(), "placement_decide_seconds_total"), 0);
  EXPECT_EQ(Sum(resident.get(), "placement_fill_copies_total"), 0);
  struct Case {
    int workers;
    std::optional<bool> moves;  // for so few rows; nullopt: as measured times of rows and copies say
    std::vector<std::string> flags;
  };
  for (const Case& c : std::vector<Case>{
           {1, false, {"--placement=agreed", "--spare_slots=1"}},
           {2, std::nullopt, {"--placement=agreed", "--spare_slots=2"}},
           // A copy of 22 ms, which a few rows never pay.
           {2, false, {"--placement=agreed", "--spare_slots=2", "--expert_copy_bytes_per_second=5e6"}},
           {2, false, {"--placement=static+spare", "--spare_slots=1"}},
           {2, std::nullopt, {"--placement=auto", "--spare_slots=1"}},
           {2, true, {"--placement=no_estimate", "--spare_slots=1"}},
           {2, true, {"--placement=no_estimate", "--spare_slots=1", "--expert_copy_bytes_per_second=2e8"}},
           // Predictions for a few rows are often wrong, and the paper's policy then moves experts.
           {3, true, {"--placement=lina", "--spare_slots=1"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags[0]));
    const auto server = Start(c.workers, c.flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
    EXPECT_EQ(Sum(server.get(), "expert_misses_total"), 0);
    EXPECT_GE(Sum(server.get(), "placement_fill_copies_total"), 128);  // all experts, and replicas
    EXPECT_GT(Sum(server.get(), "placement_decide_seconds_total"), 0);
    EXPECT_GT(Sum(server.get(), "placement_gather_seconds_total"), 0);
    EXPECT_EQ(Sum(server.get(), "placement_failed_copies_total"), 0);
    const double fine_tuned = Sum(server.get(), "placement_fine_tuned_layers_total");
    EXPECT_EQ(fine_tuned > 0, c.moves.value_or(fine_tuned > 0));
    EXPECT_EQ(Sum(server.get(), "placement_demand_copies_total") > 0, fine_tuned > 0);
    EXPECT_EQ(Sum(server.get(), "placement_prefetch_copies_total") > 0, c.flags[0] == "--placement=lina");
  }
}

std::string Shown(TestServer* server, std::vector<std::string> flags) {
  std::vector<std::string> args = {Binary("switchyard"), "experts", "--server=" + server->admin_address()};
  args.insert(args.end(), flags.begin(), flags.end());
  const auto process = Process::Start(args);
  EXPECT_EQ(process->Wait(kStartLimit), 0) << process->Output();
  return process->Output();
}

// Trials take turns, so rows stay in some steps and go to their experts' homes in others.  No file, slot or copy.
TEST_F(PlacementTest, TheTokensOfExpertsInPlace) {
  const auto one = Start(1, {});
  ASSERT_NE(one, nullptr);
  const auto expected = Tokens(one.get());
  for (const int workers : {2, 3}) {
    const auto server = Start(workers, {});
    ASSERT_NE(server, nullptr);
    const bool in_place = test::HasHugeSharedPages();
    EXPECT_EQ(Tokens(server.get()), expected);
    EXPECT_EQ(Tokens(server.get()), expected);
    EXPECT_EQ(Sum(server.get(), "placement_fill_copies_total"), 0);
    EXPECT_EQ(Sum(server.get(), "placement_gather_seconds_total"), 0);
    const auto load = server->client().GetLoad();
    ASSERT_TRUE(load.ok()) << load.status();
    if (!in_place) continue;  // (or not surely)
    EXPECT_TRUE(load->has_auto_placement());
    EXPECT_GT(load->auto_placement().deciding_steps(), 0);
    EXPECT_LT(load->auto_placement().deciding_steps(), load->auto_placement().steps());
    // One that is killed comes back with its experts in another memory.
    ASSERT_EQ(kill(server->WorkerPids().back(), SIGKILL), 0);
    ASSERT_TRUE(server->WaitReady(false, kStartLimit));
    ASSERT_TRUE(server->WaitReady(true, kStartLimit));
    EXPECT_EQ(Tokens(server.get()), expected);
    EXPECT_THAT(Shown(server.get(), {"--why=0,5"}), HasSubstr("Any worker can compute it, as all are on one machine."));
  }
}

// Workers report after the first step, and then at intervals.
TEST_F(PlacementTest, ReplicasAndPredictorsAreToBeSeen) {
  const auto server = Start(2, {"--placement=agreed", "--spare_slots=1", "--forecast=always"});
  ASSERT_NE(server, nullptr);
  v1::GetExpertsResponse answer;
  const auto all_scored = [&answer] {
    if (!answer.has_report_age_seconds()) return false;
    for (const v1::LayerExperts& layer : answer.layers())
      if (layer.estimators().empty()) return false;
    return true;
  };
  for (const absl::Time limit = absl::Now() + kStartLimit; !all_scored();) {
    ASSERT_LT(absl::Now(), limit) << answer.ShortDebugString();
    Tokens(server.get());
    const absl::StatusOr<v1::GetExpertsResponse> got = server->admin_client().GetExperts({});
    ASSERT_TRUE(got.ok()) << got.status();
    answer = *got;
  }
  int spare = 0;
  for (const v1::LayerExperts& layer : answer.layers()) {
    for (const v1::ExpertUse& expert : layer.experts()) {
      int resident = 0;
      for (const v1::Replica& replica : expert.now()) (replica.reason() == v1::Replica::RESIDENT ? resident : spare)++;
      EXPECT_EQ(resident, expert.workers_size());
    }
    int using_one_ahead = 0;
    for (const v1::EstimatorUse& use : layer.estimators()) {
      EXPECT_GE(use.batches(), 1);
      EXPECT_LE(use.total_variation(), 1);
      if (use.layers_ahead() == 1 && use.phase() == "decode") using_one_ahead += use.workers_using();
    }
    EXPECT_LE(using_one_ahead, 2) << "each worker goes by one";
  }
  EXPECT_EQ(spare, 8 * 2) << "a spare slot of each worker in each layer, filled when the group began or since";
  const std::string table = Shown(server.get(), {"--estimators", "--layer=5"});
  EXPECT_THAT(table, HasSubstr("layer 5\n"));
  EXPECT_THAT(table, HasSubstr("1 ahead  marginal "));
  EXPECT_THAT(table, HasSubstr("  used by "));
  EXPECT_THAT(Shown(server.get(), {"--layer=5"}), HasSubstr(", spare "));
  EXPECT_THAT(Shown(server.get(), {"--why=0,5"}), HasSubstr(" s ago"));
}

TEST_F(PlacementTest, SaysWhatCannotBe) {
  const std::string agreed = "--placement=agreed", spare = "--spare_slots=1";
  EXPECT_THAT(
      Refusal({agreed, spare, "--expert_memory=50%"}),
      HasSubstr("--expert_memory=50%: excludes --placement=agreed --spare_slots=1: a replica would take the room of "
                "another expert"));
  EXPECT_THAT(
      Refusal({agreed, "--spare_slots=9", "--local_workers=2"}),
      HasSubstr(
          "--spare_slots=9: a worker would have so many experts of each layer beside its own, but one of 2 workers "
          "has 8 of the 16 by itself: 8 others at most"));
  EXPECT_THAT(Refusal({"--placement=ideal", spare}), HasSubstr("is for benchmarks"));
}

}  // namespace
}  // namespace switchyard
