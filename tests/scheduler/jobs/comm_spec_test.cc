#include "scheduler/jobs/comm_spec.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

TEST(CommSpecTest, EveryModeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kNumCommModes; ++i) {
    const CommMode mode = static_cast<CommMode>(i);
    const std::string name(CommModeName(mode));
    EXPECT_TRUE(names.insert(name).second) << name;
    ASSERT_TRUE(ParseCommMode(name).ok()) << name;
    EXPECT_EQ(*ParseCommMode(name), mode);
  }
  EXPECT_EQ(CommModeName(CommMode::kPreempt), "preempt");
}

TEST(CommSpecTest, AnotherNameIsRefusedWithAllThatThereAre) {
  const absl::Status status = ParseCommMode("Fair\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "\"Fair\\n\" is no mode; must be one of fair, fixed, ar_last, priority, priority_ticketed, partition, "
            "pipelining, full, preempt");
  EXPECT_FALSE(ParseCommMode("").ok());
}

TEST(CommSpecTest, AGranularityIsARuleOrANumber) {
  for (const char* name : {"mode", "model", "profile", "1", "7", "64"}) {
    const absl::StatusOr<Granularity> granularity = ParseGranularity(name);
    ASSERT_TRUE(granularity.ok()) << granularity.status();
    EXPECT_EQ(GranularityName(*granularity), name);
    EXPECT_EQ(granularity->decides(), absl::string_view(name) == "model" || absl::string_view(name) == "profile");
  }
  for (const char* name : {"", "0", "65", "-1", "04", " 4", "4 ", "4.0", "Model", "99999999999"}) {
    EXPECT_EQ(ParseGranularity(name).status(),
              absl::InvalidArgumentError(absl::StrCat("\"", name,
                                                      "\" is no granularity; must be one of mode, model, "
                                                      "profile, or a number of chunks in [1, 64]")));
  }
  CommunicationSpec spec = {.mode = CommMode::kFull, .granularity = {.rule = ChunkRule::kFixed, .chunks = 4}};
  EXPECT_TRUE(CheckGranularity(spec).ok());
  spec.granularity = {.rule = ChunkRule::kProfile};
  EXPECT_EQ(CheckGranularity(spec).message(),
            "profile does not go with mode full, in which steps' times decide how experts are packed; mode or a number "
            "of chunks does");
  spec.packing = {.rule = PackingRule::kFixed, .replicas = 2};  // nothing is tried
  EXPECT_TRUE(CheckGranularity(spec).ok());
  spec = {.mode = CommMode::kFair, .granularity = spec.granularity};
  EXPECT_TRUE(CheckGranularity(spec).ok());
  spec.packing.rule = PackingRule::kTrials;
  EXPECT_EQ(CheckGranularity(spec).message(),
            "profile does not go with expert_packing trials, in which steps' times decide how experts are packed; mode "
            "or a number of chunks does");
}

TEST(CommSpecTest, APackingIsARuleOrANumber) {
  for (const char* name : {"mode", "trials", "1", "3", "64"}) {
    const absl::StatusOr<PackingChoice> packing = ParsePackingChoice(name);
    ASSERT_TRUE(packing.ok()) << packing.status();
    EXPECT_EQ(PackingChoiceName(*packing), name);
  }
  for (const char* name : {"", "0", "65", "-1", "02", " 2", "2 ", "Mode", "99999999999"}) {
    EXPECT_EQ(ParsePackingChoice(name).status(),
              absl::InvalidArgumentError(absl::StrCat("\"", name,
                                                      "\" is no packing of experts; must be one of mode, trials, or a "
                                                      "number of replicas in [1, 64]")));
  }
  CommunicationSpec spec;
  const auto tries = [&](CommMode mode, PackingRule rule) {
    return TriesPackings({.mode = mode, .packing = {.rule = rule, .replicas = 2}});
  };
  EXPECT_TRUE(tries(CommMode::kFull, PackingRule::kMode));
  EXPECT_FALSE(tries(CommMode::kPreempt, PackingRule::kMode));
  EXPECT_TRUE(tries(CommMode::kPreempt, PackingRule::kTrials));
  EXPECT_FALSE(tries(CommMode::kFull, PackingRule::kFixed));
  EXPECT_EQ(FirstPacking(spec), 1);
  EXPECT_TRUE(CheckPackingChoice(spec, 5).ok());
  spec.packing = {.rule = PackingRule::kFixed, .replicas = 3};
  EXPECT_EQ(FirstPacking(spec), 3);
  EXPECT_TRUE(CheckPackingChoice(spec, 6).ok());
  EXPECT_EQ(CheckPackingChoice(spec, 4).message(), "3 replicas of each expert do not divide 4 workers");
  spec.packing.replicas = 65;
  EXPECT_EQ(CheckPackingChoice(spec, 65).message(), "65 replicas of each expert are outside [1, 64]");
}

}  // namespace
}  // namespace switchyard::jobs
