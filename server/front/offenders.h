// Clients whose connections broke a limit, and how long each must wait before it may connect again.
//
// A client is an address, of IPv6 a /64.  Its open connections go on: behind one address there may be many programs.
// Each further violation doubles the wait, from one second to a minute; ten minutes without one and all is forgotten.
// On loopback, where all programs share an address, the wait stays at one second.  Thread-safe.
#pragma once

#include <algorithm>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

class Offenders {
 public:
  static constexpr absl::Duration kFirstWait = absl::Seconds(1), kLongestWait = absl::Seconds(60),
                                  kTogether = absl::Milliseconds(500), kMemory = absl::Minutes(10);
  static constexpr size_t kMost = 65536;  // remembered clients

  // Counts a violation of the client.
  void Punish(const std::string& client, bool is_loopback, absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (clients_.size() >= kMost && !clients_.contains(client)) ForgetLocked(now);
    Client& entry = clients_[client];
    if (now - entry.last > kMemory) entry.violations = 0;
    // Connections that are ended together are one offence: more of them double nothing.
    if (now - entry.last >= kTogether) ++entry.violations;
    entry.last = now;
    const int doubled = is_loopback ? 0 : std::min(entry.violations - 1, 6);
    entry.until = now + std::min(kLongestWait, kFirstWait * (1 << doubled));
  }
  // Until when the client waits; the past if it need not.
  absl::Time WaitsUntil(const std::string& client) const {
    absl::MutexLock lock(&mu_);
    const auto it = clients_.find(client);
    return it == clients_.end() ? absl::InfinitePast() : it->second.until;
  }
  // The part of its bursts that a new connection of the client has: half for each violation that counts, 1/16 at least.
  double BurstPart(const std::string& client, absl::Time now) const {
    absl::MutexLock lock(&mu_);
    const auto it = clients_.find(client);
    if (it == clients_.end() || now - it->second.last > kMemory) return 1;
    return 1.0 / (1 << std::min(it->second.violations, 4));
  }
  int num_waiting(absl::Time now) const {
    absl::MutexLock lock(&mu_);
    return static_cast<int>(
        std::count_if(clients_.begin(), clients_.end(), [now](const auto& entry) { return entry.second.until > now; }));
  }

 private:
  struct Client {
    int violations = 0;
    absl::Time last = absl::InfinitePast(), until = absl::InfinitePast();
  };
  // Makes room: forgets who need not wait, or else everybody.
  void ForgetLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::erase_if(clients_, [now](const auto& entry) { return entry.second.until <= now; });
    if (clients_.size() >= kMost) clients_.clear();
  }

  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
