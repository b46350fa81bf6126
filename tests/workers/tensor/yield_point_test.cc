// The gate of work that stops for other work: threads that wait, threads that pass, and a pool's loops.
#include "workers/tensor/yield_point.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLong = absl::Hours(1);

// A thread that waits at the gate once.
class Passer {
 public:
  explicit Passer(YieldPoint* gate)
      : thread_([this, gate] {
          gate->AwaitOpen();
          through_ = true;
        }) {}
  bool through() const { return through_; }
  void Join() { thread_.join(); }

 private:
  std::atomic<bool> through_{false};
  std::thread thread_;
};

TEST(YieldPoint, IsShutUntilItIsOpened) {
  YieldPoint gate;
  Passer passer(&gate);
  gate.AwaitStanding(1);
  EXPECT_FALSE(passer.through());
  gate.OpenFor(kLong);
  passer.Join();
  gate.AwaitOpen();
}

TEST(YieldPoint, ASliceEndsByItself) {
  YieldPoint gate;
  gate.OpenFor(absl::Nanoseconds(1));
  Passer passer(&gate);
  gate.AwaitStanding(1);
  EXPECT_EQ(gate.opened(), absl::Nanoseconds(1));
  gate.OpenFor(kLong);
  passer.Join();
}

TEST(YieldPoint, ReleasedItStaysOpenUntilItIsHeld) {
  YieldPoint gate;
  gate.Release();
  gate.AwaitOpen();
  gate.Shut();
  gate.AwaitOpen();
  gate.Hold();
  Passer passer(&gate);
  gate.AwaitStanding(1);
  EXPECT_FALSE(passer.through());
  gate.Release();
  passer.Join();
  EXPECT_EQ(gate.opened(), absl::ZeroDuration());
}

// Records the yields that a gate reports.
struct Yields {
  void Add(absl::Duration yield) {
    absl::MutexLock lock(&mu);
    list.push_back(yield);
  }
  std::vector<absl::Duration> Take() {
    absl::MutexLock lock(&mu);
    return list;
  }
  void AwaitOne() {
    absl::MutexLock lock(&mu);
    const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return !list.empty(); };
    mu.Await(absl::Condition(&any));
  }
  absl::Mutex mu;
  std::vector<absl::Duration> list ABSL_GUARDED_BY(mu);
};

TEST(YieldPoint, ReportsWhenTheLastThreadHasStopped) {
  Yields yields;
  YieldPoint gate([&](absl::Duration yield) { yields.Add(yield); });
  gate.OpenFor(kLong);
  absl::BlockingCounter entered(2);
  absl::Notification one_goes_on, other_goes_on;
  std::thread one([&] {
    const YieldingScope inside(&gate);
    entered.DecrementCount();
    one_goes_on.WaitForNotification();
    gate.Pass();
  });
  std::thread other([&] {
    const YieldingScope inside(&gate);
    entered.DecrementCount();
    other_goes_on.WaitForNotification();
  });
  entered.Wait();
  gate.Shut();
  gate.Shut();  // counts once
  one_goes_on.Notify();
  gate.AwaitStanding(1);
  EXPECT_TRUE(yields.Take().empty());  // the other still computes
  other_goes_on.Notify();
  other.join();
  ASSERT_EQ(yields.Take().size(), 1u);
  EXPECT_GT(yields.Take()[0], absl::ZeroDuration());
  // A thread that waits at the gate does not compute: the next Shut reports no yield.
  gate.Shut();
  gate.OpenFor(kLong);
  one.join();
  gate.Shut();
  EXPECT_EQ(yields.Take().size(), 1u);
}

// A thread that does not reach the gate before it is opened again counts as late.
TEST(YieldPoint, WhoNeverStoppedIsReported) {
  Yields yields;
  YieldPoint gate([&](absl::Duration yield) { yields.Add(yield); });
  gate.OpenFor(kLong);
  const YieldingScope inside(&gate);
  gate.Shut();
  gate.OpenFor(kLong);
  EXPECT_EQ(yields.Take().size(), 1u);
  gate.Pass();
}

// A released thread that computes beside serving counts, too.
TEST(YieldPoint, ReleasedOnesCountAsLate) {
  Yields yields;
  YieldPoint gate([&](absl::Duration yield) { yields.Add(yield); });
  gate.Release();
  {
    const YieldingScope inside(&gate);
    gate.Shut();
    gate.Pass();
    EXPECT_TRUE(yields.Take().empty());
  }
  EXPECT_EQ(yields.Take().size(), 1u);
}

// A thread that waits outside does not compute: a Shut then reports no yield.
TEST(YieldPoint, WhoWaitsOutsideDoesNotCount) {
  Yields yields;
  YieldPoint gate([&](absl::Duration yield) { yields.Add(yield); });
  Passer passer(&gate);
  gate.AwaitStanding(1);
  gate.Shut();
  gate.OpenFor(kLong);
  passer.Join();
  gate.Shut();
  gate.AwaitStill();
  EXPECT_TRUE(yields.Take().empty());
}

// Behind the gate a loop stops between tasks, whatever the number of threads, and goes on where it was.
TEST(ThreadPoolBehindAGate, StopsBetweenTasksAndDoesEachOnce) {
  for (const int threads : {1, 3}) {
    Yields yields;
    YieldPoint gate([&](absl::Duration yield) { yields.Add(yield); });
    ThreadPool pool(threads, false, &gate);
    constexpr int kTasks = 200;
    std::vector<std::atomic<int>> done(kTasks);
    std::atomic<int> num_done{0};
    std::thread runner([&] {
      pool.Run(kTasks, [&](int64_t task) {
        ++done[task];
        if (++num_done == 5) gate.Shut();
      });
    });
    gate.AwaitStanding(1);
    EXPECT_EQ(num_done, 0);
    gate.OpenFor(kLong);
    yields.AwaitOne();
    gate.AwaitStill();
    const int stopped_at = num_done;
    EXPECT_LT(stopped_at, 5 + threads) << "each ends the task that it has begun";
    gate.OpenFor(kLong);
    runner.join();
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPoolBehindAGate, CutsLoopsIntoMoreParts) {
  YieldPoint gate;
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

// How often a loop calls for its range of a million, with a grain of 16.
int Calls(absl::Duration limit) {
  YieldPoint gate;
  gate.SetLimit(limit);
  gate.OpenFor(kLong);
  ThreadPool pool(1, false, &gate);
  int calls = 0;
  int64_t next = 0;
  pool.ParallelFor(1 << 20, 16, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(begin, next);
    EXPECT_GE(end - begin, 16);
    next = end;
    ++calls;
  });
  EXPECT_EQ(next, 1 << 20);
  return calls;
}

// Pieces grow while they take little of the limit, and stay at the grain where they take more.
TEST(ThreadPoolBehindAGate, TheLimitSaysHowFinelyLoopsAreCut) {
  EXPECT_EQ(Calls(absl::Nanoseconds(1)), (1 << 20) / 16);
  EXPECT_LT(Calls(absl::Hours(1)), 300);
}

// A limit that is smaller from the middle of a loop on cuts the rest of it as finely as it may.
TEST(ThreadPoolBehindAGate, LongPiecesBecomeShort) {
  YieldPoint gate;
  gate.SetLimit(absl::Hours(1));
  gate.OpenFor(kLong);
  ThreadPool pool(1, false, &gate);
  int64_t longest = 0, last = 0;
  pool.ParallelFor(1 << 20, 16, [&](int64_t begin, int64_t end) {
    if (begin >= 1 << 19) gate.SetLimit(absl::Nanoseconds(1));
    last = end - begin;
    longest = std::max(longest, last);
  });
  EXPECT_GE(longest, 1024);
  EXPECT_LE(last, 32);
}

// A task that yields stops within, and threads that wait for it sleep.
TEST(ThreadPoolBehindAGate, ALongTaskYields) {
  YieldPoint gate;
  gate.OpenFor(kLong);
  ThreadPool pool(2, false, &gate);
  std::atomic<int> yields{0};
  std::atomic<bool> enough{false};
  std::thread runner([&] {
    pool.Run(2, [&](int64_t task) {
      while (task == 0 && !enough) {
        if (yields == 5) gate.Shut();
        pool.Yield();
        ++yields;
      }
    });
  });
  gate.AwaitStanding(1);
  gate.AwaitStill();
  EXPECT_EQ(yields, 5);
  enough = true;
  gate.OpenFor(kLong);
  runner.join();
}

}  // namespace
}  // namespace switchyard
