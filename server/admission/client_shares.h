// Counts the calls or connections that each client holds.
//
// A client is an API key or, without a keys file, an address: a gateway for many users is one client, as are all
// programs of one machine.  Connections are always counted by address.  Thread-safe.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/support/host_port.h"

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

// Returns the client of a call's peer: gRPC's name for it, "ipv4:10.0.0.1:4711", without the port.
inline std::string ClientOfPeer(absl::string_view peer) {
  const bool has_port = peer.substr(0, 2) == "ip";
  return std::string(has_port ? peer.substr(0, peer.rfind(':')) : peer);
}

// Returns the peer's address as the system writes it: ::1 for "ipv6:%5B::1%5D:4711".  Empty if the peer has no address.
inline std::string AddressOfPeer(absl::string_view peer) {
  if (peer.substr(0, 2) != "ip") return "";
  const std::string client = ClientOfPeer(peer);
  return rpc::BareHost(absl::StrReplaceAll(client.substr(client.find(':') + 1), {{"%5B", "["}, {"%5D", "]"}}));
}

}  // namespace switchyard::server
