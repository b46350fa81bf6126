// WorkThread finishes works on a thread of its own, so that their later exchanges begin without a Wait of the caller's.
// Used by communicator.cc alone.
//
// Works are finished in the order in which they are given.  (Not on a group's I/O thread: it serves all classes, and a
// long sum on it would hold up the messages of the others.)
// Thread-compatible; the thread is started by the first work.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

class WorkThread {
 public:
  // comm: of the works; outlives this.
  explicit WorkThread(Communicator* comm) : comm_(comm) {}
  ~WorkThread();  // REQUIRES: no work that Carry returned is left.

  // A work whose Wait returns what that of `work` returned on the thread.  key: of the work, for an error.
  std::unique_ptr<Work> Carry(const OpKey& key, std::unique_ptr<Work> work);

 private:
  class CarriedWork;

  void Run();

  Communicator* const comm_;
  absl::Mutex mu_;
  std::deque<CarriedWork*> queue_ ABSL_GUARDED_BY(mu_);  // as many as the callers hold
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::comm
