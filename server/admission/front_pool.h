// A few threads for work that must not run on gRPC's threads: parsing, rendering, tokenizing.
//
// Waiting calls are limited in number and bytes, in all and of one client.  Clients take turns, one call each; where
// there is no room for a call, the newest call of the client that holds most is refused.  Want of memory ends a call,
// not the process: a call that needs more than is left does not begin, and one that runs out of memory is refused.
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
    // May throw std::bad_alloc if it has done nothing that `refuse` would repeat.
    absl::AnyInvocable<void()> run;
    // Instead of run, or after its std::bad_alloc: RESOURCE_EXHAUSTED with limit and actual.
    absl::AnyInvocable<void(const absl::Status&)> refuse;
  };
  // Bytes that the process may still allocate; called before a larger call begins.
  using RoomFn = absl::AnyInvocable<int64_t() const>;

  FrontPool(int num_threads, Limits limits, RoomFn room = &MemoryRoom);
  ~FrontPool();  // runs what was accepted

  // Calls either run, on a thread of the pool, or refuse, on this thread, another poster's or one of the pool.
  void Post(Work work);

  int64_t waiting_bytes() const {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  int64_t num_refused() const { return refused_.load(); }

  // The bytes that RLIMIT_AS leaves; the maximum without that limit.
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
  // An error names the limit that the waiting calls exceed.
  absl::Status CheckLimits(const std::string& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds `calls`, 1 or -1, such calls to what waits.
  void Count(const Work& work, int calls, Client* client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the client's newest or oldest call, and the client if that was its last; turns_ is the caller's to adjust.
  Work Take(const std::string& client, bool newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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

// The client of a call for the turns; `peer` as gRPC names it.  It is an address, and on loopback a connection.
std::string FrontClientOfPeer(absl::string_view peer);

}  // namespace switchyard::server
