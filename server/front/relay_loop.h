// One thread of a relay, and the connections that it serves.
#pragma once

#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/front/relay_connection.h"

namespace switchyard::server {

class Relay;

class RelayLoop {
 public:
  explicit RelayLoop(Relay* relay);
  ~RelayLoop();  // ends its connections

  // Any thread.
  void Add(std::unique_ptr<RelayConnection> connection);

 private:
  // A connection and what epoll knows of it.
  struct Entry {
    std::unique_ptr<RelayConnection> connection;
    int inner_fd = -1;  // -1: epoll does not know it
    uint32_t client_events = 0, inner_events = 0;
    absl::Time due = absl::InfiniteFuture();
  };
  void Run();
  void AcceptNew(absl::Time now);
  void RunOne(Entry* entry, bool gone, RelayConnection::Readable readable, absl::Time now);
  void Watch(int operation, int fd, uint32_t events, Entry* entry, uintptr_t tag);
  void WatchInner(Entry* entry);
  int TimeoutMs(absl::Time now) const;

  Relay* const relay_;
  UniqueFd epoll_, wake_;
  std::set<std::pair<absl::Time, Entry*>> due_;
  absl::flat_hash_map<Entry*, std::unique_ptr<Entry>> entries_;

  absl::Mutex mu_;
  std::vector<std::unique_ptr<RelayConnection>> new_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::server
