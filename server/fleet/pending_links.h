// Links of workers that have not registered yet: how many, and for how long.
//
// Whoever reaches the port may open a link; until it has shown a token it is a stranger.  Thread-safe; owns no link.
#pragma once

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class PendingLinks {
 public:
  static constexpr size_t kMaxWaiting = 256;
  static constexpr absl::Duration kLongestWait = absl::Seconds(5);

  // False: too many wait; end the link.
  bool Enter(WorkerId id, std::weak_ptr<WorkerClient> client, absl::Time now);
  // It has registered, or is gone.
  void Leave(WorkerId id);
  // Closes those that have waited for too long: DEADLINE_EXCEEDED.  Call every 100 ms or so.
  void CheckTime(absl::Time now);

 private:
  struct Waiting {
    std::weak_ptr<WorkerClient> client;
    absl::Time since;
  };

  absl::Mutex mu_;
  std::map<WorkerId, Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // oldest first: ids only grow
};

}  // namespace switchyard::server
