// The gate before work that makes way for other work: who gets through, who waits, and what a pool does behind it.
#include "workers/tensor/work_gate.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLong = absl::Hours(1);
constexpr absl::Duration kMoment = absl::Milliseconds(20);

TEST(WorkGate, IsShutUntilItIsOpened) {
  WorkGate gate;
  absl::Notification through;
  std::thread passer([&] {
    gate.Pass();
    through.Notify();
  });
  EXPECT_FALSE(through.WaitForNotificationWithTimeout(kMoment));
  gate.OpenFor(kLong);
  passer.join();
  EXPECT_TRUE(through.HasBeenNotified());
  gate.Pass();
}

TEST(WorkGate, ASliceEndsByItself) {
  WorkGate gate;
  gate.OpenFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(2));
  absl::Notification through;
  std::thread passer([&] {
    gate.Pass();
    through.Notify();
  });
  EXPECT_FALSE(through.WaitForNotificationWithTimeout(kMoment));
  EXPECT_GE(gate.opened(), absl::Milliseconds(1));
  EXPECT_LT(gate.opened(), absl::Milliseconds(2));
  gate.OpenFor(kLong);
  passer.join();
}

TEST(WorkGate, ReleasedItStaysOpenUntilItIsHeld) {
  WorkGate gate;
  gate.Release();
  gate.Pass();
  gate.Shut();
  gate.Pass();
  gate.Hold();
  absl::Notification through;
  std::thread passer([&] {
    gate.Pass();
    through.Notify();
  });
  EXPECT_FALSE(through.WaitForNotificationWithTimeout(kMoment));
  gate.Release();
  passer.join();
  EXPECT_EQ(gate.opened(), absl::ZeroDuration());
}

// What a gate tells of its yields.
struct Yields {
  void Add(absl::Duration yield) {
    absl::MutexLock lock(&mu);
    list.push_back(yield);
  }
  std::vector<absl::Duration> Take() {
    absl::MutexLock lock(&mu);
    return list;
  }
  absl::Mutex mu;
  std::vector<absl::Duration> list ABSL_GUARDED_BY(mu);
};

TEST(WorkGate, TellsWhenTheLastThreadHasStopped) {
  Yields yields;
  WorkGate gate([&](absl::Duration yield) { yields.Add(yield); });
  gate.OpenFor(kLong);
  std::atomic<int> entered{0};
  absl::Notification one_goes_on, other_goes_on;
  std::thread one([&] {
    gate.Enter();
    ++entered;
    one_goes_on.WaitForNotification();
    gate.Pass();
    gate.Leave();
  });
  std::thread other([&] {
    gate.Enter();
    ++entered;
    other_goes_on.WaitForNotification();
    gate.Leave();
  });
  while (entered < 2) absl::SleepFor(absl::Milliseconds(1));
  const absl::Time shut = absl::Now();
  gate.Shut();
  gate.Shut();  // counts once
  one_goes_on.Notify();
  absl::SleepFor(kMoment);
  EXPECT_TRUE(yields.Take().empty());  // the other still computes
  other_goes_on.Notify();
  other.join();
  const absl::Duration most = absl::Now() - shut;
  ASSERT_EQ(yields.Take().size(), 1u);
  EXPECT_GE(yields.Take()[0], kMoment);
  EXPECT_LE(yields.Take()[0], most);
  // Who stands at the gate does not compute: nothing to tell of the next time.
  gate.Shut();
  gate.OpenFor(kLong);
  one.join();
  gate.Shut();
  EXPECT_EQ(yields.Take().size(), 1u);
}

// Behind the gate a loop stops between tasks, whatever the number of threads, and goes on where it was.
TEST(ThreadPoolBehindAGate, StopsBetweenTasksAndDoesEachOnce) {
  for (const int threads : {1, 3}) {
    Yields yields;
    WorkGate gate([&](absl::Duration yield) { yields.Add(yield); });
    ThreadPool pool(threads, false, &gate);
    constexpr int kTasks = 200;
    std::vector<std::atomic<int>> done(kTasks);
    std::atomic<int> num_done{0};
    std::thread runner([&] {
      pool.Run(kTasks, [&](int64_t task) {
        absl::SleepFor(absl::Microseconds(500));
        ++done[task];
        ++num_done;
      });
    });
    absl::SleepFor(kMoment);
    EXPECT_EQ(num_done, 0);
    gate.OpenFor(kLong);
    while (num_done < 5) absl::SleepFor(absl::Milliseconds(1));
    gate.Shut();
    while (yields.Take().empty()) absl::SleepFor(absl::Milliseconds(1));
    const int stopped_at = num_done;
    absl::SleepFor(kMoment);
    EXPECT_EQ(num_done, stopped_at);
    EXPECT_LT(stopped_at, kTasks);
    gate.OpenFor(kLong);
    runner.join();
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPoolBehindAGate, CutsLoopsIntoMoreParts) {
  WorkGate gate;
  gate.OpenFor(kLong);
  ThreadPool plain(1), gated(1, false, &gate);
  int plain_parts = 0, gated_parts = 0;
  plain.ParallelFor(1 << 20, 1, [&](int64_t, int64_t) { ++plain_parts; });
  gated.ParallelFor(1 << 20, 1, [&](int64_t, int64_t) { ++gated_parts; });
  EXPECT_EQ(plain_parts, 4);
  EXPECT_GE(gated_parts, 100);
  int64_t covered = 0;
  gated.ParallelFor(1000, 999, [&](int64_t begin, int64_t end) { covered += end - begin; });
  EXPECT_EQ(covered, 1000);
}

// A task that breathes stops within, and threads that wait for it sleep.
TEST(ThreadPoolBehindAGate, ALongTaskBreathes) {
  Yields yields;
  WorkGate gate([&](absl::Duration yield) { yields.Add(yield); });
  gate.OpenFor(kLong);
  ThreadPool pool(2, false, &gate);
  std::atomic<int> breaths{0};
  std::atomic<bool> enough{false};
  std::thread runner([&] {
    pool.Run(2, [&](int64_t task) {
      while (task == 0 && !enough) {
        pool.Breathe();
        ++breaths;
        absl::SleepFor(absl::Microseconds(100));
      }
    });
  });
  while (breaths < 5) absl::SleepFor(absl::Milliseconds(1));
  gate.Shut();
  while (yields.Take().empty()) absl::SleepFor(absl::Milliseconds(1));
  const int stopped_at = breaths;
  absl::SleepFor(kMoment);
  EXPECT_EQ(breaths, stopped_at);
  enough = true;
  gate.OpenFor(kLong);
  runner.join();
}

}  // namespace
}  // namespace switchyard
