// Accepts the connections of a gRPC port, with limits in total and per client.
//
// gRPC 1.51 has no such limits, and when the process has no file descriptor left, it stops accepting for good.  The
// gate closes a connection beyond the limits at once (its client sees UNAVAILABLE), waits while no descriptor is free,
// and passes accepted connections to gRPC.  A connection counts until its socket is closed.
//
// Clients that hold all places cannot keep workers out: workers of this machine use another socket, which only
// processes of this user may open, and some places are kept for addresses from which workers have joined before.
//
// Accepts on a thread of its own.  Thread-safe.  Reads no bytes of connections; what passes them on may
// (front/relay.h).
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/admission/client_shares.h"

namespace switchyard::server {

class ConnectionGate {
 public:
  struct Limits {
    int connections = 512;
    int per_client = 256;
    int kept = 0;   // further places for addresses of workers
    int local = 0;  // further places on this machine's socket; 0: no such socket
  };
  // Receives a connection that was accepted from `listener`, and owns it.
  using TakeFn = std::function<void(int listener, int connection)>;

  // Listens on every address of `host` (a name or an address; :: is every address of both families; empty: only on this
  // machine's socket); port 0 = any free one.  Unavailable: listening failed; the message has the system's reason.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& host, int port, Limits limits);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  int port() const { return port_; }
  // The name of this machine's abstract socket; empty if there is none.
  const std::string& local_name() const { return local_name_; }
  bool IsLocal(int listener) const { return listener == local_listener_; }
  // Accepts clients from now on.  Call once.
  void Open(TakeFn take);
  // Stops accepting and listening; blocks until that is done.  Accepted connections stay.
  void Close();

  // Lets the address use the kept places from now on, since a worker has joined from it.
  void KeepPlacesFor(const std::string& address);
  // Ends every open connection; bytes under way are lost.  REQUIRES: Close was called.
  void EndConnections();

  // Whether the worker's connection has bytes that gRPC has not read yet.  `peer` is gRPC's name; a peer on this
  // machine's socket has none and is found by its process.
  bool HasUnread(absl::string_view peer, int64_t pid);

  int num_open();  // connections
  int64_t num_refused() const {
    absl::MutexLock lock(&mu_);
    return refused_;
  }

 private:
  enum Kind { kClient, kKept, kLocal, kNumKinds };
  // A peer, parsed from gRPC's name for it.
  struct Peer {
    std::string address;  // without its scope; empty: on this machine's socket
    int port = -1;
  };
  struct Connection {
    Kind kind = kClient;
    int fd = -1;
    dev_t device = 0;  // the socket's identity: gRPC closes it when it likes, and the number is used again
    ino_t inode = 0;
    std::string address;
    int port = 0;   // of the peer, unless it uses this machine's socket
    pid_t pid = 0;  // of the peer, if it uses this machine's socket
    bool IsOpen() const;
    bool Is(const Peer& peer, int64_t pid) const;
  };

  static Peer Named(absl::string_view name);
  explicit ConnectionGate(Limits limits) : limits_(limits) {}
  absl::Status Bind(const std::string& host, int port);
  absl::Status BindLocally();
  void Run();
  void Accept(int listener);
  // Returns whether the connection may stay, and counts it if so.
  bool Admit(Connection connection);
  // Takes a place of that kind for an address; returns false when there is none.
  bool TakePlace(Kind kind, const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosed(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  std::vector<int> listeners_;
  int port_ = 0;
  int local_listener_ = -1;  // also one of listeners_
  std::string local_name_;
  int wake_ = -1;  // eventfd that Close signals
  TakeFn take_;
  std::thread thread_;

  mutable absl::Mutex mu_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mu_);
  int open_[kNumKinds] ABSL_GUARDED_BY(mu_) = {};
  absl::flat_hash_set<std::string> workers_from_ ABSL_GUARDED_BY(mu_);  // addresses
  absl::Time looked_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();    // when closed connections were last searched
  ClientShares shares_;
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time next_warning_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace switchyard::server
