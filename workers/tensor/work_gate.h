// The gate through which work goes that makes way for other work on the same cores: a training job's, on a worker that
// also serves.  It is open for slices of time, else shut.
//
// Whoever computes behind it passes it again and again, a few milliseconds apart; while it is shut nobody gets past,
// and who waits there sleeps.  Threads say Enter and Leave around what they compute, so that the gate knows when all
// have stopped.  Thread-safe; a thread is inside of one gate at most, perhaps several times.
// Does not do: stop who does not come to it; decide on slices (the server does).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard {

class WorkGate {
 public:
  // Told of each Shut that came while threads computed: how long until the last of them stood before the gate, or had
  // left.  On that thread.
  using YieldFn = std::function<void(absl::Duration)>;
  // Shut.
  explicit WorkGate(YieldFn on_yield = nullptr) : on_yield_(std::move(on_yield)) {}
  WorkGate(const WorkGate&) = delete;
  WorkGate& operator=(const WorkGate&) = delete;

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

  // For how long it was open in all, releases not counted.
  absl::Duration opened() const;

 private:
  static int64_t NowNanos();
  void Wait();
  void EndSlice(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginComputing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++computing_; }
  // How long the others had to wait for the last one; negative: nobody did, or this is not it.
  int64_t EndComputing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(int64_t yield_nanos) const;

  const YieldFn on_yield_;
  std::atomic<int64_t> open_until_{0};  // by NowNanos
  mutable absl::Mutex mu_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int computing_ ABSL_GUARDED_BY(mu_) = 0;        // threads inside that do not wait
  int64_t shut_at_ ABSL_GUARDED_BY(mu_) = 0;      // while some still compute; 0 = none does
  int64_t slice_begin_ ABSL_GUARDED_BY(mu_) = 0;  // 0 = there is none
  int64_t opened_ ABSL_GUARDED_BY(mu_) = 0;       // by slices that are over
};

// The calling thread, and those that it starts, get little of the cores that others want, for good.
void MakeWay();

}  // namespace switchyard
