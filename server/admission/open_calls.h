// Registry of open calls, which are checked at times that they set, so that a client that never reads cannot hold a
// call for ever.
//
// gRPC keeps a finished call until the client has read it.  A call sets when it is due for a check.  A thread checks
// only calls that are due, so a flood of calls costs neither their locks nor time of the engine's thread.  Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {

class OpenCalls {
 public:
  class Call {
   public:
    // Ends the call if it has waited for its client for too long, and sets the next check by CheckAt (else the call
    // stays due).  Must not block, nor call Add or Remove.
    virtual void CheckTime(absl::Time now) = 0;

   protected:
    ~Call() = default;
    // Sets the earliest time of the next CheckTime; InfiniteFuture (the initial value): never.
    void CheckAt(absl::Time when) { due_ns_.store(absl::ToUnixNanos(when), std::memory_order_relaxed); }

   private:
    friend class OpenCalls;
    std::atomic<int64_t> due_ns_{absl::ToUnixNanos(absl::InfiniteFuture())};
  };

  ~OpenCalls() { Stop(); }

  // Borrows `call` until Remove, which waits for a CheckTime that is under way.
  void Add(Call* call) {
    Part& part = PartOf(call);
    absl::MutexLock lock(&part.mu);
    part.calls.insert(call);
  }
  void Remove(Call* call) {
    Part& part = PartOf(call);
    absl::MutexLock lock(&part.mu);
    part.calls.erase(call);
  }

  // Starts the thread, which checks every 50 ms until Stop.
  void Start() {
    thread_ = std::thread([this] {
      absl::MutexLock lock(&mu_);
      while (!mu_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(50))) CheckTime(MonotonicNow());
    });
  }
  void Stop() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  // Checks the calls that are due.  Public for tests.
  void CheckTime(absl::Time now) {
    const int64_t now_ns = absl::ToUnixNanos(now);
    for (Part& part : parts_) {
      absl::MutexLock lock(&part.mu);
      for (Call* call : part.calls) {
        if (call->due_ns_.load(std::memory_order_relaxed) <= now_ns) call->CheckTime(now);
      }
    }
  }

 private:
  // The set is split, so that Add and Remove wait only for the check of one part.
  struct Part {
    absl::Mutex mu;
    absl::flat_hash_set<Call*> calls ABSL_GUARDED_BY(mu);
  };
  static constexpr int kPartBits = 6;

  Part& PartOf(const Call* call) {
    constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
    return parts_[(reinterpret_cast<uintptr_t>(call) * kGoldenRatio) >> (64 - kPartBits)];
  }

  Part parts_[1 << kPartBits];
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::server
