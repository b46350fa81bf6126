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
  spec.mode = CommMode::kFair;
  EXPECT_TRUE(CheckGranularity(spec).ok());
}

}  // namespace
}  // namespace switchyard::jobs
