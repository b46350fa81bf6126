// Links of workers that have not registered yet, limited in number and time.
//
// Anybody who reaches the port may open a link, so links without a token are limited, in all and for each client.
// Thread-safe; owns no link.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/admission/client_shares.h"
#include "server/admission/peer_name.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class PendingLinks {
 public:
  static constexpr size_t kMaxWaiting = 256;
  static constexpr int kMaxOfClient = 32;
  static constexpr absl::Duration kLongestWait = absl::Seconds(5);

  // Adds a link of `peer` (gRPC's name).  RESOURCE_EXHAUSTED: too many wait; the caller then ends the link.  A peer
  // without an address is on the socket of this server's own workers: it is not counted.
  absl::Status Enter(WorkerId id, std::weak_ptr<WorkerClient> client, const std::string& peer, absl::Time now) {
    const std::string counted_as = AddressOfPeer(peer).empty() ? "" : ClientOfPeer(peer);
    absl::MutexLock lock(&mu_);
    if (!counted_as.empty()) {
      if (num_counted_ >= kMaxWaiting)
        return absl::ResourceExhaustedError(absl::StrCat("links that have not registered: limit ", kMaxWaiting));
      if (!shares_.Enter(counted_as, kMaxOfClient)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("links of one client that have not registered: limit ", kMaxOfClient));
      }
      ++num_counted_;
    }
    waiting_[id] = {std::move(client), counted_as, now};
    return absl::OkStatus();
  }
  // Removes a link that has registered or is gone.
  void Leave(WorkerId id) {
    absl::MutexLock lock(&mu_);
    if (const auto it = waiting_.find(id); it != waiting_.end()) Erase(it);
  }
  // Closes links that have waited for too long, with DEADLINE_EXCEEDED.  Call every 100 ms or so.
  void CheckTime(absl::Time now) {
    std::vector<std::weak_ptr<WorkerClient>> late;
    {
      absl::MutexLock lock(&mu_);
      for (auto it = waiting_.begin(); it != waiting_.end() && now - it->second.since > kLongestWait;) {
        late.push_back(std::move(it->second.client));
        it = Erase(it);
      }
    }
    for (const std::weak_ptr<WorkerClient>& waiting : late) {
      if (const std::shared_ptr<WorkerClient> client = waiting.lock()) {
        client->Close(absl::DeadlineExceededError(
            absl::StrCat("the link did not register within ", absl::FormatDuration(kLongestWait))));
      }
    }
  }

 private:
  struct Waiting {
    std::weak_ptr<WorkerClient> client;
    std::string counted_as;  // in shares_; empty: nowhere
    absl::Time since;
  };
  using ById = std::map<WorkerId, Waiting>;

  ById::iterator Erase(ById::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!it->second.counted_as.empty()) {
      shares_.Leave(it->second.counted_as);
      --num_counted_;
    }
    return waiting_.erase(it);
  }

  absl::Mutex mu_;
  ById waiting_ ABSL_GUARDED_BY(mu_);  // oldest first: ids only grow
  size_t num_counted_ ABSL_GUARDED_BY(mu_) = 0;
  ClientShares shares_;
};

}  // namespace switchyard::server
