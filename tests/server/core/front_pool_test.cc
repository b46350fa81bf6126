// The front pool: bounded, and it finishes what it took.
#include "server/front_pool.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(FrontPool, RefusesBeyondItsBoundAndRunsTheRestAtItsEnd) {
  auto pool = std::make_unique<FrontPool>(1, 3);
  absl::Notification started, go;
  std::atomic<int> ran{0};
  ASSERT_TRUE(pool->Post([&] {
    started.Notify();
    go.WaitForNotification();
    ++ran;
  }));
  started.WaitForNotification();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool->Post([&] { ++ran; }));
  EXPECT_FALSE(pool->Post([&] { ran = 100; }));
  go.Notify();
  pool.reset();
  EXPECT_EQ(ran, 4);
}

TEST(FrontPool, TasksRunSideBySide) {
  FrontPool pool(2, 8);
  absl::Notification first, second;
  ASSERT_TRUE(pool.Post([&] {
    second.WaitForNotification();
    first.Notify();
  }));
  ASSERT_TRUE(pool.Post([&] { second.Notify(); }));
  first.WaitForNotification();
}

}  // namespace
}  // namespace switchyard
