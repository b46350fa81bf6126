// Thread pool for work that must not run on gRPC's threads: parsing, rendering, tokenizing.
//
// Waiting calls are limited in number and bytes, in total and per client.  Clients take turns, one call each, and one
// thread is kept for short texts: they do not wait until long ones are read.  Without room for a new call, the pool
// refuses the newest call of the client that holds most.  Lack of memory ends a call, not the process: a call that
// needs more than is left is refused, as is one that runs out of memory.  Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace switchyard::server {

class FrontPool {
 public:
  struct Limits {
    size_t calls = 0;  // waiting ones
    int64_t bytes = 0;
    int64_t bytes_per_client = 0;
  };
  struct Work {
    std::string client;  // an API key's name, or FrontClientOfPeer
    int64_t bytes = 0;   // of the call's message
    // May throw std::bad_alloc as long as the call can still be refused.
    absl::AnyInvocable<void()> run;
    // Called instead of run, or after its std::bad_alloc, with RESOURCE_EXHAUSTED that names limit and actual value.
    absl::AnyInvocable<void(const absl::Status&)> refuse;
  };
  // Returns the bytes that the process may still allocate; called before a large call begins.
  using RoomFn = absl::AnyInvocable<int64_t() const>;

  FrontPool(int num_threads, Limits limits, RoomFn room = &MemoryRoom);
  ~FrontPool();  // runs the accepted calls first

  // Calls either work.run, on a thread of the pool, or work.refuse, on any thread that uses the pool.
  void Post(Work work);

  int64_t waiting_bytes() const {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  int64_t num_refused() const { return refused_.load(); }

  // Returns the bytes that RLIMIT_AS leaves; the maximum without that limit.
  static int64_t MemoryRoom();

 private:
  struct Client {
    std::deque<Work> waiting;
    int64_t bytes = 0;  // of the waiting calls
  };
  void Run();
  // `under_way`: bytes of this call and of those that run now.
  void RunOne(Work work, int64_t under_way);
  void Refuse(Work* work, const absl::Status& why);
  // Returns an error that names the limit that the waiting calls exceed.
  absl::Status CheckLimits(const std::string& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the call to the counts of waiting calls (`calls` = 1) or subtracts it (-1).
  void Count(const Work& work, int calls, Client* client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the client's newest or oldest call, and the client if that was its last one.  The caller adjusts turns_.
  Work Take(const std::string& client, bool newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const std::string& Largest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Index in turns_ of the first client whose oldest call may run now; turns_.size(): none.
  size_t NextTurn() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  const RoomFn room_;
  const int most_long_;  // calls with long texts that may run at once
  mutable absl::Mutex mu_;
  std::map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);  // clients with waiting calls
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mu_);          // the same clients, in the order of their turns
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t running_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int running_long_ ABSL_GUARDED_BY(mu_) = 0;  // calls with long texts
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> refused_{0};
  std::vector<std::thread> threads_;
};

// Returns the client whose turn a call uses: the address in `peer` (gRPC's name), or on loopback the connection.
std::string FrontClientOfPeer(absl::string_view peer);

}  // namespace switchyard::server
