// A few threads for what must not run on gRPC's threads: parsing, rendering, tokenizing.
//
// Thread-safe.  Bounded: Post refuses (false) when `max_queued` tasks wait.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace switchyard {

class FrontPool {
 public:
  FrontPool(int num_threads, size_t max_queued);
  ~FrontPool();  // runs what was accepted

  [[nodiscard]] bool Post(absl::AnyInvocable<void()> task);

 private:
  void Run();

  const size_t max_queued_;
  absl::Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace switchyard
