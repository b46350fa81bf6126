// Relay between clients' connections and the servers behind it (gRPC, the metrics page): TLS, the guard of HTTP/2
// frames, a bound on memory over all connections, and waits for addresses whose connections broke a limit.
//
// gRPC 1.51 has none of this beyond TLS, and what it does with frames it does before anything of ours runs.  A client's
// connection therefore ends here, and gRPC gets one end of a socket pair.  Connections of local workers need none of it
// and do not come through here.
//
// A few threads of its own, each with its connections.  Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/front/relay_connection.h"

namespace switchyard::server {

class RelayLoop;

class Relay {
 public:
  struct Options {
    int threads = 2;
    int64_t memory_bytes = int64_t{128} << 20;  // that unfinished calls of all connections may hold
    // Of one client.  Calls beyond these wait, but for a few of each connection (FrameGuard::Limits).
    double calls_a_second = 1000, call_burst = 1000;
  };
  explicit Relay(Options options);
  ~Relay();  // Stop
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Relays an accepted TCP connection, which it owns from now on.  `listener` must live until Stop.  The connection of
  // a client that must wait is closed, on loopback kept unread until then.
  void Take(const RelayListener* listener, int client_fd);
  // Ends all connections, and blocks until the threads have ended.
  void Stop();

  // How many calls of each client are served a second (ClientOfAddress), for ports whose bytes pass unread.
  ClientRates* calls() { return &shared_.calls; }

  // As Front::NameHttpPort.
  void NameHttpPort(int port) { shared_.http_port = port; }

  // Whether bytes of that peer (gRPC's name) are on their way through here.  False if it did not come through here.
  bool HasUnread(absl::string_view peer);

  // Sets Options::memory_bytes anew.
  void SetMemory(int64_t bytes) { shared_.memory.SetLimit(bytes); }
  int64_t held_bytes() const { return shared_.memory.held(); }
  // Counts since the start.
  int64_t num_ended(FrontLimit limit) const { return shared_.ended[static_cast<size_t>(limit)].load(); }
  int64_t num_failed_handshakes() const { return shared_.handshakes_failed.load(); }
  int64_t num_turned_away() const { return shared_.turned_away.load(); }  // since their clients had to wait
  int num_waiting_clients() const;

 private:
  friend class RelayLoop;
  void Publish(RelayConnection* connection);
  void Withdraw(RelayConnection* connection);

  RelayShared shared_;
  const std::string instance_;  // begins the ids of its connections
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, RelayConnection*> by_name_ ABSL_GUARDED_BY(mu_);  // all
  int64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<RelayLoop>> loops_;
};

// Makes a socket pair whose first end has that abstract name, and gives the second to `pass`.  Returns the first; -1:
// the process has no descriptor left.
int OpenNamedPair(const std::string& name, absl::FunctionRef<void(int fd)> pass);

// Returns a copy of a client's socket for a server that answers there itself (RelayListener::open), -1 for -1.  The
// socket then has room for 64 KB that are not sent yet, and no more: writers notice a client that does not read.
int CopyForAnswers(int client_fd);

}  // namespace switchyard::server
