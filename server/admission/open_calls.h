// The calls whose answers are not yet taken by their clients, so that one which never reads ends in bounded time.
//
// gRPC holds a finished call until the client has read what it was sent; a client that keeps its connection and never
// reads would hold its stream for ever.  A call says when it wants to be looked at; a thread of its own looks for those
// that are due, and touches no other: a flood of calls costs neither their locks nor the engine's thread.  Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/clock.h"

namespace switchyard::server {

class OpenCalls {
 public:
  class Call {
   public:
    // Ends itself if it has waited for its client for too long, and says when to look again; else it is due until it
    // does.  Must not block, nor call Add or Remove.
    virtual void CheckTime(absl::Time now) = 0;

   protected:
    ~Call() = default;
    // CheckTime is not called before `when`; InfiniteFuture, as at first: never.
    void CheckAt(absl::Time when) { due_ns_.store(absl::ToUnixNanos(when), std::memory_order_relaxed); }

   private:
    friend class OpenCalls;
    std::atomic<int64_t> due_ns_{absl::ToUnixNanos(absl::InfiniteFuture())};
  };

  ~OpenCalls() { Stop(); }

  // `call` is borrowed until Remove, which may wait for a CheckTime that is under way.
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

  // Looks every 50 ms from now on, until Stop.
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

  // What the thread does; for tests.
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
  // Calls that come and go wait for the look at one part alone.
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
