// Links of workers that have not registered yet, limited in number and time.
//
// Anybody who reaches the port may open a link, so links without a token are limited.  Thread-safe; owns no link.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class PendingLinks {
 public:
  static constexpr size_t kMaxWaiting = 256;
  static constexpr absl::Duration kLongestWait = absl::Seconds(5);

  // Adds a link.  Returns false if too many wait; the caller then ends the link.
  bool Enter(WorkerId id, std::weak_ptr<WorkerClient> client, absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (waiting_.size() >= kMaxWaiting) return false;
    waiting_[id] = {std::move(client), now};
    return true;
  }
  // Removes a link that has registered or is gone.
  void Leave(WorkerId id) {
    absl::MutexLock lock(&mu_);
    waiting_.erase(id);
  }
  // Closes links that have waited for too long, with DEADLINE_EXCEEDED.  Call every 100 ms or so.
  void CheckTime(absl::Time now) {
    std::vector<std::weak_ptr<WorkerClient>> late;
    {
      absl::MutexLock lock(&mu_);
      for (auto it = waiting_.begin(); it != waiting_.end() && now - it->second.since > kLongestWait;) {
        late.push_back(std::move(it->second.client));
        it = waiting_.erase(it);
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
    absl::Time since;
  };

  absl::Mutex mu_;
  std::map<WorkerId, Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // oldest first: ids only grow
};

}  // namespace switchyard::server
