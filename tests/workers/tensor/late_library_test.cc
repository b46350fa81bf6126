#include "workers/tensor/cuda/late_library.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

LateLibrary present("libc.so.6"), missing("libsy_none.so.1");

pid_t Parent() { SY_CALL_LATE(present, getppid); }

TEST(LateLibraryTest, PassesCallsOn) {
  EXPECT_TRUE(present.Open().ok());
  EXPECT_EQ(Parent(), getppid());
  EXPECT_EQ(Parent(), getppid());
}

TEST(LateLibraryTest, SaysWhatIsMissing) {
  for (const absl::Status& status : {missing.Open(), OpenLateLibraries()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("GPUs need libsy_none.so.1: "));
  }
  EXPECT_DEATH(missing.Find<int()>("Any"), "libsy_none.so.1");
  EXPECT_DEATH(present.Find<int()>("SyNoSuchFunction"), "libc.so.6 has no SyNoSuchFunction");
}

}  // namespace
}  // namespace switchyard
