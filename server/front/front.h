// The server's front: what its listeners share between clients' connections and the servers behind, made from flags.
//
//   front = Front::Open(config);
//   front->AddListener(...) for each listener; front->relay(peers).Take(listener, fd) for each connection
//
// Thread-safe, but for Open and AddListener.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/config.h"
#include "server/front/relay.h"
#include "server/front/tls_server.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

// Calls of gRPC and requests of HTTP of one client that are served each second, together; further ones wait.
double CallsASecond(const ServerConfig& config);

class Front {
 public:
  // InvalidArgument: the TLS files, see TlsServer::Load.
  static absl::StatusOr<std::unique_ptr<Front>> Open(const ServerConfig& config);
  ~Front() { Stop(); }

  enum class Peers { kClients, kWorkers };
  // Adds a listener for gRPC, with TLS if there are certificates; `pass` gets the server's end of each connection.
  // Clients must present a certificate if there is a --tls_client_ca, workers if there is a --tls_worker_ca.
  const RelayListener* AddListener(std::function<void(int fd)> pass, Peers peers);
  // Adds a listener for HTTP/1.1, whose bytes pass unread; likewise.  What the server says goes into `answer_fd`, a
  // copy of the client's socket, or, if that is -1, into `fd`.
  const RelayListener* AddHttp(std::function<void(int fd, int answer_fd)> pass);
  // Likewise, to that port on loopback.
  const RelayListener* AddPage(int port);

  // Sets the port to which clients of HTTP/1.1 are sent that come to one for gRPC.  REQUIRES: no connection is taken
  // yet.
  void NameHttpPort(int port) { relay_.NameHttpPort(port); }

  // Floods and bytes of clients do not count for workers, nor the reverse.
  Relay& relay(Peers peers) { return peers == Peers::kWorkers ? worker_relay_ : relay_; }
  bool has_tls() const { return tls_ != nullptr; }

  // Sets the metrics of connections.  One thread.
  void Count(ServerMetrics* metrics);
  // Reads certificates again and logs how that went; bad ones leave the old.  A thread of this object's own does so
  // each second if a file has changed.
  void ReloadCertificates();
  // Ends all connections, and blocks until all threads have ended.
  void Stop();

 private:
  explicit Front(const ServerConfig& config);
  const RelayListener* AddUnread(std::function<int(const std::string& name, int client_fd)> open);
  void Watch();

  const int64_t memory_bytes_;
  const FrameGuard::Limits limits_;
  std::unique_ptr<TlsServer> tls_, worker_tls_;  // the same certificate, and who asks whom; both null: plaintext
  std::vector<std::unique_ptr<RelayListener>> listeners_;
  Relay relay_, worker_relay_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watch_;  // certificates and memory
  // Already counted by the metrics; used by Count alone.
  int64_t ended_[static_cast<size_t>(FrontLimit::kNumLimits)] = {};
  int64_t failed_handshakes_ = 0, turned_away_ = 0;
};

}  // namespace switchyard::server
