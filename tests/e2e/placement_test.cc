// --placement: the same tokens whatever the mode, while experts change their places; what is said where it cannot be.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"

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
    bool moves;  // for so few rows
    std::vector<std::string> flags;
  };
  for (const Case& c : std::vector<Case>{
           {1, false, {"--placement=agreed", "--spare_slots=1"}},
           {2, false, {"--placement=agreed", "--spare_slots=2"}},
           {2, false, {"--placement=static+spare", "--spare_slots=1"}},
           {2, true, {"--placement=no_estimate", "--spare_slots=1"}},
           {2, true, {"--placement=no_estimate", "--spare_slots=1", "--expert_copy_bytes_per_second=2e8"}},
           // What forecasters expect of a few rows is often wrong, and the paper moves experts then.
           {3, true, {"--placement=central", "--spare_slots=1"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags[0]));
    const auto server = Start(c.workers, c.flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
    EXPECT_GE(Sum(server.get(), "placement_fill_copies_total"), 128);  // all experts, and replicas
    EXPECT_GT(Sum(server.get(), "placement_decide_seconds_total"), 0);
    EXPECT_GT(Sum(server.get(), "placement_gather_seconds_total"), 0);
    EXPECT_EQ(Sum(server.get(), "placement_failed_copies_total"), 0);
    EXPECT_EQ(Sum(server.get(), "placement_fine_tuned_layers_total") > 0, c.moves);
    EXPECT_EQ(Sum(server.get(), "placement_demand_copies_total") > 0, c.moves);
  }
}

TEST_F(PlacementTest, SaysWhatCannotBe) {
  const std::string agreed = "--placement=agreed", spare = "--spare_slots=1";
  EXPECT_THAT(Refusal({agreed, spare, "--expert_budget=50%"}), HasSubstr("--expert_budget=50%"));
  EXPECT_THAT(Refusal({"--placement=ideal", spare}), HasSubstr("is for benchmarks"));
  EXPECT_THAT(Refusal({"--placement=oracle", spare}), HasSubstr("is for benchmarks"));
}

}  // namespace
}  // namespace switchyard
