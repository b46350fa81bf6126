// Detects connections that flood the server with calls that are reset before their request comes.
//
// Such a call costs its client a few bytes but gRPC a whole call, so a flood delays everything (CVE-2023-44487).  A
// connection that also carries answered calls is not a flood: a gateway's calls may all reach their deadlines while
// this process is stopped.  Thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

class ResetGuard {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  // Counts a call that was made over the connection of `peer`.  Returns true, at most once in a window, if the
  // connection floods: in this window more than `limit` calls are not forgiven, and more than ten times as many as were
  // forgiven in this window and the one before.
  bool Made(const std::string& peer, int limit, absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (now - begun_ > kWindow) {
      before_ = std::exchange(calls_, {});
      if (now - begun_ > 2 * kWindow) before_.clear();
      begun_ = now;
    }
    Calls& calls = calls_[peer];
    ++calls.made;
    if (calls.is_flood || calls.made - calls.forgiven <= limit) return false;
    const auto it = before_.find(peer);
    const int good = calls.forgiven + (it == before_.end() ? 0 : it->second.forgiven);
    calls.is_flood = calls.made - calls.forgiven > 10 * good;
    return calls.is_flood;
  }
  // Forgives one call: its request came, or its client read the answer.
  void Forgive(const std::string& peer) {
    absl::MutexLock lock(&mu_);
    ++calls_[peer].forgiven;
  }

 private:
  struct Calls {
    int made = 0;
    int forgiven = 0;
    bool is_flood = false;
  };
  absl::Mutex mu_;
  absl::Time begun_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::flat_hash_map<std::string, Calls> calls_ ABSL_GUARDED_BY(mu_), before_ ABSL_GUARDED_BY(mu_);  // by peer
};

}  // namespace switchyard::server
