// The door of the gRPC port: accepts the connections, so that there is a bound on them, in all and from one client.
//
// gRPC 1.51 knows no such bound, and when the process has no file descriptor left, it stops accepting for good.  Here a
// connection beyond the limits is closed at once (its client sees UNAVAILABLE), want of descriptors only delays, and
// what was let in is gRPC's.  A connection counts until its socket is closed, by whomever.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/client_shares.h"

namespace switchyard {

class ConnectionGate {
 public:
  struct Limits {
    int connections = 512;
    int per_client = 256;
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
  // Lets clients in from now on.  Call once.
  void Open(TakeFn take);
  // Blocks until nobody is let in any more and nobody listens.  What was let in stays.
  void Close();

  int num_open();  // connections
  int64_t num_refused() const;

 private:
  struct Connection {
    int fd = -1;
    dev_t device = 0;  // the socket's identity: gRPC closes it when it likes, and the number is used again
    ino_t inode = 0;
    std::string client;
  };

  explicit ConnectionGate(Limits limits) : limits_(limits) {}
  absl::Status Bind(const std::string& host, int port);
  void Run();
  void Accept(int listener);
  // Whether the connection may stay; counts it if so.
  bool Admit(int fd, const std::string& client);
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  std::vector<int> listeners_;
  int port_ = 0;
  int wake_ = -1;  // eventfd: Close was called
  TakeFn take_;
  std::thread thread_;

  mutable absl::Mutex mu_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mu_);
  ClientShares shares_;
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time next_warning_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace switchyard
