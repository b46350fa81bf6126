#include "scheduler/jobs/comm_spec.h"

#include <set>
#include <string>

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

}  // namespace
}  // namespace switchyard::jobs
