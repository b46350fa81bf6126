// A few threads for what must not run on gRPC's threads: parsing, rendering, tokenizing.
//
// Bounded in calls and in the bytes that they hold, in all and of one client, and fair: clients take turns, one call
// each, and where there is no room for a client's call, the newest of whoever holds most is refused for it.  Want of
// memory ends a call, not the process: one that needs more than is left is not begun, and one that runs out of it is
// refused.
//
// Thread-safe.
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
    size_t calls = 0;  // that wait
    int64_t bytes = 0;
    int64_t bytes_per_client = 0;
  };
  struct Work {
    std::string client;  // FrontClientOfPeer
    int64_t bytes = 0;   // of the call's message
    // May throw std::bad_alloc, and has then done nothing that `refuse` would repeat.
    absl::AnyInvocable<void()> run;
    // Instead of run, or after its std::bad_alloc: RESOURCE_EXHAUSTED with limit and actual.
    absl::AnyInvocable<void(const absl::Status&)> refuse;
  };
  // Bytes that the process may still allocate; asked before a larger call is begun.
  using RoomFn = absl::AnyInvocable<int64_t() const>;

  FrontPool(int num_threads, Limits limits, RoomFn room = &MemoryRoom);
  ~FrontPool();  // runs what was accepted

  // Leads to run, on a thread of the pool, or to refuse, here or on any thread that posts or runs.
  void Post(Work work);

  int64_t waiting_bytes() const;
  int64_t num_refused() const { return refused_.load(); }

  // What RLIMIT_AS leaves; the most that there is without one.
  static int64_t MemoryRoom();

 private:
  struct Client {
    std::deque<Work> waiting;
    int64_t bytes = 0;  // of those
  };
  void Run();
  // `under_way`: bytes of it and of those that run beside it.
  void RunOne(Work work, int64_t under_way);
  void Refuse(Work* work, const absl::Status& why);
  // OK, or which limit the waiting calls are beyond.
  absl::Status CheckLimits(const std::string& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds `calls`, 1 or -1, such calls to what waits.
  void Count(const Work& work, int calls, Client* client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Work TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Work TakeNewest(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const std::string& Largest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  const RoomFn room_;
  mutable absl::Mutex mu_;
  std::map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);  // those with waiting calls
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mu_);          // the same, in the order of their turns
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t running_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> refused_{0};
  std::vector<std::thread> threads_;
};

// Whose turn it is when a call of that peer waits, as gRPC names it: an address; on loopback, where all have one, a
// connection.
std::string FrontClientOfPeer(absl::string_view peer);

}  // namespace switchyard::server
