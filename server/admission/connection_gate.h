// The door of the gRPC port: accepts the connections, so that there is a bound on them, in all and from one client.
//
// gRPC 1.51 knows no such bound, and when the process has no file descriptor left, it stops accepting for good.  Here a
// connection beyond the limits is closed at once (its client sees UNAVAILABLE), want of descriptors only delays, and
// what was let in is gRPC's.  A connection counts until its socket is closed, by whomever.
//
// Clients who hold all places keep no worker out: those of this machine have a socket of their own, which processes of
// this user alone may use, and for those from elsewhere some places are kept, which addresses of workers that have
// joined before may use when there are no others.
//
// A thread of its own accepts.  Thread-safe.  Does not read what comes, nor limit how often.
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
    int kept = 0;   // beside those: for addresses of workers
    int local = 0;  // beside those: over the socket of this machine; 0: there is none
  };
  // Takes a connection that was accepted from `listener`.
  using TakeFn = std::function<void(int listener, int connection)>;

  // Listens on every address of `host` (a name or an address; :: is every address of both families), port 0 = any free
  // one.  Unavailable, with the system's reason: that is not possible.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& host, int port, Limits limits);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  int port() const { return port_; }
  // Of the socket of this machine, an abstract one; empty if there is none.
  const std::string& local_name() const { return local_name_; }
  // Lets clients in from now on.  Call once.
  void Open(TakeFn take);
  // Blocks until nobody is let in any more and nobody listens.  What was let in stays.
  void Close();

  // A worker has joined from that address: the kept places are for it, too.
  void KeepPlacesFor(const std::string& address);
  // Ends every connection that is still open, also one whose other end never reads: what is on its way to it is lost.
  // After Close.
  void EndConnections();

  // Whether something has come over the connection of a worker that gRPC has not read yet.  `peer` as gRPC names it;
  // one of this machine has no name, and is known by its process.
  bool HasUnread(absl::string_view peer, int64_t pid);

  // Ends the connection of that name; what is on its way over it is lost.  False: none is open, or it is of this
  // machine's socket.
  bool End(absl::string_view peer);

  int num_open();  // connections
  int64_t num_refused() const;

 private:
  enum Kind { kClient, kKept, kLocal, kNumKinds };
  // As gRPC names them.
  struct Peer {
    std::string address;  // without its scope; empty: of this machine's socket
    int port = -1;
  };
  struct Connection {
    Kind kind = kClient;
    int fd = -1;
    dev_t device = 0;  // the socket's identity: gRPC closes it when it likes, and the number is used again
    ino_t inode = 0;
    std::string client;
    int port = 0;   // of its end, unless it is of this machine
    pid_t pid = 0;  // at its end, if it is of this machine
    bool IsOpen() const;
    bool Is(const Peer& peer, int64_t pid) const;
  };

  static Peer Named(absl::string_view name);
  explicit ConnectionGate(Limits limits) : limits_(limits) {}
  absl::Status Bind(const std::string& host, int port);
  absl::Status BindLocally();
  void Run();
  void Accept(int listener);
  // Whether the connection may stay; counts it if so.
  bool Admit(Connection connection);
  // A place of that kind, if there is one for `client`.
  bool TakePlace(Kind kind, const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosed(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  std::vector<int> listeners_;
  int port_ = 0;
  int local_listener_ = -1;  // also one of listeners_
  std::string local_name_;
  int wake_ = -1;  // eventfd: Close was called
  TakeFn take_;
  std::thread thread_;

  mutable absl::Mutex mu_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mu_);
  int open_[kNumKinds] ABSL_GUARDED_BY(mu_) = {};
  absl::flat_hash_set<std::string> workers_from_ ABSL_GUARDED_BY(mu_);  // addresses
  absl::Time looked_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();    // all of them, for those that are closed
  ClientShares shares_;
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time next_warning_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace switchyard::server
