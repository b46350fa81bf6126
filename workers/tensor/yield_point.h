// A gate that stops a thread pool's work in favour of other work on the same cores: a training job's, on a worker that
// also serves.  It is open for time slices, else shut.
//
// Threads are inside (YieldingScope) while they compute a task, pass the gate every few milliseconds and sleep there
// while it is shut.  Long work outside of a pool, such as a job's setup, waits for it now and then (AwaitOpen).  The
// rest, a job's sums, copies and saves, goes on beside the other work, at a low priority (MakeWay).
//
// Thread-safe.  Does not do: stopping a thread that never passes; deciding on slices (the server does).
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
  // Called after a Shut while threads computed, with the time until the last of them waited at the gate or had left, or
  // until the gate was opened again.  Runs on the thread that caused the call.
  using YieldFn = std::function<void(absl::Duration)>;
  // A new gate is shut.
  explicit YieldPoint(YieldFn on_yield = nullptr) : on_yield_(std::move(on_yield)) {}

  // Opens the gate from now on for `slice`, and replaces an earlier slice.
  void OpenFor(absl::Duration slice);
  void Shut();
  // Lets every thread pass, despite Shut, until Hold shuts the gate: so that waiting work can end.
  void Release();
  void Hold();

  // Blocks until the gate is open, of a thread outside of it.
  void AwaitOpen() {
    if (NowNanos() >= open_until_.load(std::memory_order_acquire)) WaitOutside();
  }
  // As AwaitOpen, of a thread inside of it.
  void Pass() {
    if (NowNanos() >= open_until_.load(std::memory_order_acquire)) WaitInside();
  }
  // Surround a thread's computation.  Enter waits until the gate is open.
  void Enter();
  void Leave();

  // The time within which all threads are to stop after a Shut.
  void SetLimit(absl::Duration limit) { limit_nanos_ = absl::ToInt64Nanoseconds(limit); }
  absl::Duration limit() const { return absl::Nanoseconds(limit_nanos_.load(std::memory_order_relaxed)); }

  // How long the gate was open in all, without releases.
  absl::Duration opened() const;

  // For tests.  Block until so many threads wait at the gate; until no thread computes inside.
  void AwaitStanding(int threads) const;
  void AwaitStill() const;

 private:
  static int64_t NowNanos();
  void WaitOutside();
  void WaitInside();
  // Blocks while the gate is shut.
  void Stand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndSlice(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how long this thread, the last to stop, took after Shut; negative: it is not the last, or there was none.
  int64_t EndComputing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(int64_t yield_nanos) const;

  const YieldFn on_yield_;
  std::atomic<int64_t> limit_nanos_{50'000'000};
  std::atomic<int64_t> open_until_{0};  // by NowNanos
  mutable absl::Mutex mu_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int computing_ ABSL_GUARDED_BY(mu_) = 0;        // threads inside that do not wait
  int standing_ ABSL_GUARDED_BY(mu_) = 0;         // threads that wait at the gate
  int64_t shut_at_ ABSL_GUARDED_BY(mu_) = 0;      // while some threads still compute; 0 = none does
  int64_t slice_begin_ ABSL_GUARDED_BY(mu_) = 0;  // 0 = there is none
  int64_t opened_ ABSL_GUARDED_BY(mu_) = 0;       // by slices that are over
};

// The calling thread is inside the gate for as long as this lives.
class YieldingScope {
 public:
  // gate: borrowed; null: does nothing.
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

// Gives the calling thread and those that it starts a low priority, until they end.
void MakeWay();

}  // namespace switchyard
