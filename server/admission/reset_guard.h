// Counts, by connection, calls that were reset without a request and an answer.
//
// Such a call costs its client a few bytes, and gRPC a whole call: a flood of them delays everything (CVE-2023-44487).
// Connections that also carry calls which are answered, such as a gateway's whose deadlines ended while this process
// was stopped, are left alone.  Thread-safe.
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
  // connection floods: more than `limit` calls of this window have not been forgiven, and more than ten for each call
  // of this window or the one before that has been.
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
  // The request of one of its calls has come, or its client took the answer.
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
