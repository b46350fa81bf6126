// The calls whose answers are not yet taken by their clients, so that one which never reads ends in bounded time.
//
// gRPC holds a finished call until the client has read what it was sent; a client that keeps its connection and never
// reads would hold its stream for ever.  Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard {

class OpenCalls {
 public:
  class Call {
   public:
    // Ends itself if it has waited for its client for too long.  Must not block, nor call Add or Remove.
    virtual void CheckTime(absl::Time now) = 0;

   protected:
    ~Call() = default;
  };

  // `call` is borrowed until Remove, which may wait for a CheckTime that is under way.
  void Add(Call* call) {
    absl::MutexLock lock(&mu_);
    calls_.insert(call);
  }
  void Remove(Call* call) {
    absl::MutexLock lock(&mu_);
    calls_.erase(call);
  }
  // Call every 100 ms or so, not on one of gRPC's threads.
  void CheckTime(absl::Time now) {
    absl::MutexLock lock(&mu_);
    for (Call* call : calls_) call->CheckTime(now);
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard
