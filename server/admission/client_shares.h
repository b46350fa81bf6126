// Counts the calls or connections that each client holds.
//
// A client is an API key or, without a keys file, an address: a gateway for many users is one client, as are all
// programs of one machine.  Connections are always counted by address.  Thread-safe.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace switchyard::server {

class ClientShares {
 public:
  // Adds one for `client`.  Returns false if the client already holds `limit`; the caller must then not call Leave.
  [[nodiscard]] bool Enter(const std::string& client, int limit) {
    absl::MutexLock lock(&mu_);
    int& held = held_[client];
    if (held >= limit) return false;
    ++held;
    return true;
  }
  void Leave(const std::string& client) {
    absl::MutexLock lock(&mu_);
    const auto it = held_.find(client);
    if (it != held_.end() && --it->second == 0) held_.erase(it);
  }
  // Number of clients that hold something.
  size_t num_clients() const {
    absl::MutexLock lock(&mu_);
    return held_.size();
  }

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, int> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
