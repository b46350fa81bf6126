#include "proto/support/library_setup.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::rpc {
namespace {

// A thread that takes two mutexes in one order and later in the other deadlocks with nobody.
void LockInBothOrders() {
  absl::Mutex a, b;
  {
    absl::MutexLock first(&a);
    absl::MutexLock second(&b);
  }
  absl::MutexLock first(&b);
  absl::MutexLock second(&a);
}

TEST(LibrarySetupTest, AnOrderOfLocksThatMightDeadlockEndsNoProcess) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer itself ends a process for it";
#endif
  EXPECT_EXIT(
      {
        SetUpLibraries();
        LockInBothOrders();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(LibrarySetupTest, ProtobufsComplaintsAreOneLine) {
  SetUpLibraries();
  v1::StoreSetRequest no_text;
  std::string bytes = "\x0a\x01\xff";  // store_token, which is no UTF-8
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(no_text.ParseFromString(bytes));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_THAT(said, testing::HasSubstr("store_token"));
}

}  // namespace
}  // namespace switchyard::rpc
