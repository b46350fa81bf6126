#include "server/admission/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/join_tokens.h"
#include "server/admission/peer_name.h"

namespace switchyard::server {
namespace {

constexpr int kBacklog = 512;
constexpr int kPauseMs = 100;                   // when no descriptor is left
constexpr int kProbeSeconds = 10, kProbes = 2;  // of a silent connection
constexpr absl::Duration kWarnEvery = absl::Seconds(10);
// A full gate searches for closed connections at most this often.
constexpr absl::Duration kSearchEvery = absl::Milliseconds(10);
constexpr size_t kMostAddresses = 1024;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(rpc::BareHost(host).c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return AddressList(found, &freeaddrinfo);
}

// Makes a socket that listens on `address` and *port; port 0 means any free one, and *port is set to it.
absl::StatusOr<int> ListenOn(const addrinfo& address, int* port) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted connections inherit these options.  gRPC pings connections with calls; the kernel probes the others.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kProbeSeconds, sizeof(kProbeSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof(kProbeSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_storage at = {};
  socklen_t length = address.ai_addrlen;
  std::memcpy(&at, address.ai_addr, length);
  // The port is at the same place in both families.
  reinterpret_cast<sockaddr_in*>(&at)->sin_port = htons(static_cast<uint16_t>(*port));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&at), length) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    const absl::Status status = absl::UnavailableError(std::strerror(errno));
    close(fd);
    return status;
  }
  *port = ntohs(reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
  return fd;
}

std::string AddressText(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return std::string(absl::StripPrefix(text, "::ffff:"));  // IPv4 on a socket of both families
}

// Removes an IPv6 address's scope, which gRPC and the system write differently.
std::string WithoutScope(const std::string& address) { return address.substr(0, address.find('%')); }

// Returns the process at the other end; 0 if it belongs to another user.
pid_t ProcessOfThisUser(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  const bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
  return known ? peer.pid : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& host, int port,
                                                                       Limits limits) {
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(limits));
  if (!host.empty()) RETURN_IF_ERROR(gate->Bind(host, port));
  if (limits.local > 0) RETURN_IF_ERROR(gate->BindLocally());
  gate->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (gate->wake_ < 0) return absl::UnavailableError(std::strerror(errno));
  return gate;
}

ConnectionGate::~ConnectionGate() {
  Close();
  for (const int fd : listeners_) close(fd);
  if (wake_ >= 0) close(wake_);
}

absl::Status ConnectionGate::Bind(const std::string& host, int port) {
  ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, port));
  port_ = port;
  absl::Status last;
  // One address is enough, since this machine may lack an address family.
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<int> fd = ListenOn(*address, &port_);
    if (fd.ok()) {
      listeners_.push_back(*fd);
    } else {
      last = fd.status();
    }
  }
  return listeners_.empty() ? last : absl::OkStatus();
}

// The name is random, so that it is free; it disappears with the socket.
absl::Status ConnectionGate::BindLocally() {
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  local_name_ = absl::StrCat("switchyard-", DrawToken());
  local_name_.copy(at.sun_path + 1, sizeof(at.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + local_name_.size());
  local_listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (local_listener_ >= 0) listeners_.push_back(local_listener_);
  if (local_listener_ < 0 || bind(local_listener_, reinterpret_cast<const sockaddr*>(&at), length) != 0 ||
      listen(local_listener_, kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat("the local workers' socket: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

void ConnectionGate::Open(TakeFn take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionGate::Close() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  for (const int fd : std::exchange(listeners_, {})) close(fd);
}

void ConnectionGate::Run() {
  std::vector<pollfd> waits = {{wake_, POLLIN, 0}};
  for (const int fd : listeners_) waits.push_back({fd, POLLIN, 0});
  for (;;) {
    if (poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return LogError("no more connections are accepted: poll: ", std::strerror(errno));
    }
    if (waits[0].revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) Accept(waits[i].fd);
    }
  }
}

void ConnectionGate::Accept(int listener) {
  sockaddr_storage from = {};
  socklen_t length = sizeof(from);
  int fd;
  {
    // The lock keeps a descriptor that gRPC has closed from becoming a new connection while End uses it.
    absl::MutexLock lock(&mu_);
    fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
  if (fd >= 0) {
    Connection connection;
    connection.fd = fd;
    if (listener == local_listener_) {
      connection.kind = kLocal;
      connection.pid = ProcessOfThisUser(fd);
    } else {
      connection.address = AddressText(from, length);
      connection.port = ntohs(reinterpret_cast<const sockaddr_in*>(&from)->sin_port);  // as in the other family
    }
    if (Admit(std::move(connection))) return take_(listener, fd);
    close(fd);
    return;
  }
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
    return;  // the connection is already gone
  LogWarn("cannot accept a connection: ", std::strerror(errno), "; trying again");
  pollfd wait = {wake_, POLLIN, 0};
  poll(&wait, 1, kPauseMs);
}

bool ConnectionGate::Connection::IsOpen() const {
  struct stat found = {};
  return fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

void ConnectionGate::ForgetClosed(absl::Time now) {
  looked_at_ = now;
  const auto is_closed = [this](const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (connection.IsOpen()) return false;
    --open_[connection.kind];
    if (connection.kind == kClient) shares_.Leave(ClientOfAddress(connection.address));
    return true;
  };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), is_closed), connections_.end());
}

bool ConnectionGate::TakePlace(Kind kind, const std::string& address) {
  const int limit = kind == kClient ? limits_.connections : kind == kKept ? limits_.kept : limits_.local;
  if (open_[kind] >= limit) return false;
  if (kind == kKept && !workers_from_.contains(address)) return false;
  if (kind == kClient && !shares_.Enter(ClientOfAddress(address), limits_.per_client)) return false;
  ++open_[kind];
  return true;
}

bool ConnectionGate::Admit(Connection connection) {
  struct stat socket = {};
  const bool local = connection.kind == kLocal;
  if (fstat(connection.fd, &socket) != 0 || (local && connection.pid == 0)) return false;
  connection.device = socket.st_dev;
  connection.inode = socket.st_ino;
  absl::MutexLock lock(&mu_);
  const absl::Time now = MonotonicNow();
  bool has_place = TakePlace(connection.kind, connection.address);
  if (!has_place && now - looked_at_ >= kSearchEvery) {
    ForgetClosed(now);
    has_place = TakePlace(connection.kind, connection.address);
  }
  if (!has_place && !local) has_place = TakePlace(connection.kind = kKept, connection.address);
  if (has_place) {
    connections_.push_back(std::move(connection));
    return true;
  }
  ++refused_;
  if (now >= next_warning_) {
    next_warning_ = now + kWarnEvery;
    LogWarn("connections are refused: ", connections_.size(), " are open, limit ", limits_.connections,
            ", of one client ", limits_.per_client, " (--max_connections, --max_connections_per_client)");
  }
  return false;
}

void ConnectionGate::KeepPlacesFor(const std::string& address) {
  absl::MutexLock lock(&mu_);
  if (!address.empty() && workers_from_.size() < kMostAddresses) workers_from_.insert(address);
}

ConnectionGate::Peer ConnectionGate::Named(absl::string_view name) {
  Peer peer = {.address = WithoutScope(AddressOfPeer(name))};
  const std::string direct = DirectPeer(name);
  if (!absl::SimpleAtoi(direct.substr(direct.rfind(':') + 1), &peer.port)) peer.port = -1;
  return peer;
}

void ConnectionGate::EndConnections() {
  absl::MutexLock lock(&mu_);
  ForgetClosed(MonotonicNow());
  // gRPC may close a descriptor at any time, but after Close no new connection gets it.
  for (const Connection& connection : connections_) shutdown(connection.fd, SHUT_RDWR);
}

bool ConnectionGate::Connection::Is(const Peer& peer, int64_t of_process) const {
  if (kind == kLocal) return peer.address.empty() && pid == of_process;
  return port == peer.port && WithoutScope(address) == peer.address;
}

bool ConnectionGate::HasUnread(absl::string_view name, int64_t pid) {
  const Peer peer = Named(name);
  absl::MutexLock lock(&mu_);
  for (const Connection& connection : connections_) {
    int bytes = 0;
    if (!connection.Is(peer, pid) || !connection.IsOpen()) continue;
    if (ioctl(connection.fd, FIONREAD, &bytes) == 0 && bytes > 0) return true;
  }
  return false;
}

int ConnectionGate::num_open() {
  absl::MutexLock lock(&mu_);
  ForgetClosed(MonotonicNow());
  return static_cast<int>(connections_.size());
}

}  // namespace switchyard::server
