// Threads that make the masks that need too long for the engine's thread.
//
// Thread-safe.  A constraint's masks are made one after the other, in order (MaskTask's twin has one owner), those of
// different constraints side by side.  Those that a step may wait for, of outputs behind the first, go before first
// ones, whose sequences wait in the queue.  Threads start with the first mask.  The queue is bounded by the sequences
// that run or wait, each of which lacks one mask at most: what was asked for by others, which have ended, is dropped.
#pragma once

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/batching/mask_request.h"

namespace switchyard::server {

class MaskPool {
 public:
  static constexpr int kThreads = 2;
  static constexpr size_t kLookAt = 64;

  // `done` is called on one of the threads for each mask that is still wanted, with the time that it took.
  using Done = absl::AnyInvocable<void(batching::MaskAnswer answer, absl::Duration took) const>;
  explicit MaskPool(Done done) : done_(std::move(done)) {}
  // Masks that wait are not made.
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  // Never blocks.
  void Start(batching::MaskRequest request);
  // Requests that wait.
  size_t num_waiting() const;

 private:
  void Run();
  using Queue = std::deque<batching::MaskRequest>;
  // Returns where the first request is whose constraint no thread works on; null: there is none.
  std::pair<Queue*, size_t> Find() ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Takes it from there.  REQUIRES: there is one.
  batching::MaskRequest Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Done done_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Queue waiting_[2] ABSL_GUARDED_BY(mu_);          // of outputs behind the first; of first ones
  size_t look_at_ ABSL_GUARDED_BY(mu_) = kLookAt;  // so many requests in a queue are looked through for unwanted ones
  absl::flat_hash_set<const grammar::Automaton*> busy_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
