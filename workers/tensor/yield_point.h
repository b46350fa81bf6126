// The gate through which work goes that makes way for other work on the same cores: a training job's, on a worker that
// also serves.  It is open for slices of time, else shut.
//
// Whoever computes behind it passes it again and again, a few milliseconds apart; while it is shut nobody gets past,
// and who waits there sleeps.  Threads are inside (YieldingScope) while they compute and outside (NonYieldingScope)
// while they wait for each other or for a disk, so that the gate knows when all have stopped.  Thread-safe; a thread is
// inside of one gate at most, perhaps several times. Does not do: stop who does not come to it; decide on slices (the
// server does).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard {

class YieldPoint {
 public:
  // Reported of each Shut that came while threads computed: how long until the last of them stood before the gate, or
  // had left, or until it was opened again.  On the thread that did so.
  using YieldFn = std::function<void(absl::Duration)>;
  // Shut.
  explicit YieldPoint(YieldFn on_yield = nullptr) : on_yield_(std::move(on_yield)) {}
  YieldPoint(const YieldPoint&) = delete;
  YieldPoint& operator=(const YieldPoint&) = delete;

  // From now on for so long, whatever was said before.
  void OpenFor(absl::Duration slice);
  void Shut();
  // Everybody goes through, whatever is said, until Hold, which shuts it: what waits is to come to its end.
  void Release();
  void Hold();

  // Returns when the gate is open.
  void Pass() {
    if (NowNanos() >= open_until_.load(std::memory_order_acquire)) Wait();
  }
  // Around what a thread computes; Enter passes.
  void Enter();
  void Leave();

  // The one that the calling thread is inside of: for threads that it starts.  Null: none.
  static YieldPoint* Own();
  // Passes it, if there is one: for what knows of no gate.
  static void PassOwn();

  // Within which all are to stop once it is shut: who cuts work does so by it.
  void SetLimit(absl::Duration limit) { limit_nanos_ = absl::ToInt64Nanoseconds(limit); }
  absl::Duration limit() const { return absl::Nanoseconds(limit_nanos_.load(std::memory_order_relaxed)); }

  // For how long it was open in all, releases not counted.
  absl::Duration opened() const;

  // For tests.  Block until so many threads stand before it; until nobody computes inside.
  void AwaitStanding(int threads) const;
  void AwaitStill() const;

 private:
  static int64_t NowNanos();
  void Wait();
  // Blocks while it is shut.
  void Stand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndSlice(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginComputing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++computing_; }
  // How long the others had to wait for the last one; negative: nobody did, or this is not it.
  int64_t EndComputing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(int64_t yield_nanos) const;

  const YieldFn on_yield_;
  std::atomic<int64_t> limit_nanos_{50'000'000};
  std::atomic<int64_t> open_until_{0};  // by NowNanos
  mutable absl::Mutex mu_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int computing_ ABSL_GUARDED_BY(mu_) = 0;        // threads inside that do not wait
  int standing_ ABSL_GUARDED_BY(mu_) = 0;         // threads before it
  int64_t shut_at_ ABSL_GUARDED_BY(mu_) = 0;      // while some still compute; 0 = none does
  int64_t slice_begin_ ABSL_GUARDED_BY(mu_) = 0;  // 0 = there is none
  int64_t opened_ ABSL_GUARDED_BY(mu_) = 0;       // by slices that are over
};

// The calling thread is inside for as long as this lives.
class YieldingScope {
 public:
  // gate: borrowed; null: of none.  Passes it.
  explicit YieldingScope(YieldPoint* gate) : gate_(gate) {
    if (gate_ != nullptr) gate_->Enter();
  }
  ~YieldingScope() {
    if (gate_ != nullptr) gate_->Leave();
  }
  YieldingScope(const YieldingScope&) = delete;
  YieldingScope& operator=(const YieldingScope&) = delete;

 private:
  YieldPoint* const gate_;
};

// For as long as this lives the calling thread waits and does not compute: it is outside of the gate that it is inside
// of, if any, and passes it at the end.  Begin it before a mutex is taken.
class NonYieldingScope {
 public:
  NonYieldingScope();
  ~NonYieldingScope();
  NonYieldingScope(const NonYieldingScope&) = delete;
  NonYieldingScope& operator=(const NonYieldingScope&) = delete;

 private:
  YieldPoint* const gate_;
  const int depth_;
};

// memcpy; the calling thread passes the gate that it is inside of, if any, before each megabyte.
void CopyBehindGate(void* to, const void* from, int64_t bytes);

// The calling thread, and those that it starts, get little of the cores that others want, for good.
void MakeWay();

}  // namespace switchyard
