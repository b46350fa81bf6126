#include "workers/tensor/cuda/late_library.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

LateLibrary present("libc.so.6", {"getppid"}), missing("libsy_none.so.1", {}),
    other("libm.so.6", {"cos", "sy_no_function"});

pid_t Parent() { SY_CALL_LATE(present, getppid); }

TEST(LateLibraryTest, PassesCallsOn) {
  EXPECT_TRUE(present.Open().ok());
  EXPECT_EQ(Parent(), getppid());
  EXPECT_EQ(Parent(), getppid());
}

TEST(LateLibraryTest, SaysWhatIsMissing) {
  for (const absl::Status& status : {missing.Open(), OpenLateLibraries()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("a GPU needs libsy_none.so.1 in the loader's folders"));
  }
  EXPECT_DEATH(missing.Find<int()>("Any"), "libsy_none.so.1");
  EXPECT_EQ(other.Open().message(), "a GPU needs a newer libm.so.6: it has no sy_no_function");
  EXPECT_DEATH(other.Find<double(double)>("cos"), "it has no sy_no_function");
}

}  // namespace
}  // namespace switchyard
