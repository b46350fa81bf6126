#include "server/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"
#include "scheduler/base/log.h"
#include "server/clock.h"
#include "server/join_tokens.h"

namespace switchyard {
namespace {

constexpr int kBacklog = 512;
constexpr int kPauseMs = 100;                   // when no descriptor is left
constexpr int kProbeSeconds = 10, kProbes = 2;  // of a connection that says nothing
constexpr absl::Duration kWarnEvery = absl::Seconds(10);
// A door that is full is not searched for closed connections for each one that is refused.
constexpr absl::Duration kSearchEvery = absl::Milliseconds(10);
constexpr size_t kMostAddresses = 1024;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(BareHost(host).c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return AddressList(found, &freeaddrinfo);
}

// A socket that listens on `address`; its port is `port` if that is not 0, and *port is what it came to be.
absl::StatusOr<int> ListenOn(const addrinfo& address, int* port) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // The accepted ones inherit these.  gRPC pings those with calls; of the others the kernel finds whose machine is
  // gone.
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

// A process of the same user has opened it.
bool IsOfThisUser(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& host, int port,
                                                                       Limits limits) {
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(limits));
  if (const absl::Status status = gate->Bind(host, port); !status.ok()) return status;
  if (limits.local > 0) {
    if (const absl::Status status = gate->BindLocally(); !status.ok()) return status;
  }
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
  const absl::StatusOr<AddressList> addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  port_ = port;
  absl::Status last;
  // A name may have an address of a family that this machine has not: one is enough.
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<int> fd = ListenOn(*address, &port_);
    if (fd.ok()) {
      listeners_.push_back(*fd);
    } else {
      last = fd.status();
    }
  }
  return listeners_.empty() ? last : absl::OkStatus();
}

// The name is drawn, so that nobody else has it already; it goes with the socket.
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
  const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    const bool local = listener == local_listener_;
    if (Admit(fd, local, local ? std::string() : AddressText(from, length))) return take_(listener, fd);
    close(fd);
    return;
  }
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;  // it went, or was another's
  LogWarn("cannot accept a connection: ", std::strerror(errno), "; trying again");
  pollfd wait = {wake_, POLLIN, 0};
  poll(&wait, 1, kPauseMs);
}

void ConnectionGate::ForgetClosed(absl::Time now) {
  looked_at_ = now;
  const auto is_closed = [this](const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    struct stat found = {};
    if (fstat(connection.fd, &found) == 0 && found.st_dev == connection.device && found.st_ino == connection.inode) {
      return false;
    }
    --open_[connection.kind];
    if (connection.kind == kClient) shares_.Leave(connection.client);
    return true;
  };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), is_closed), connections_.end());
}

bool ConnectionGate::TakePlace(Kind kind, const std::string& client) {
  const int limit = kind == kClient ? limits_.connections : kind == kKept ? limits_.kept : limits_.local;
  if (open_[kind] >= limit) return false;
  if (kind == kKept && !workers_from_.contains(client)) return false;
  if (kind == kClient && !shares_.Enter(client, limits_.per_client)) return false;
  ++open_[kind];
  return true;
}

bool ConnectionGate::Admit(int fd, bool local, const std::string& client) {
  struct stat socket = {};
  if (fstat(fd, &socket) != 0 || (local && !IsOfThisUser(fd))) return false;
  absl::MutexLock lock(&mu_);
  const absl::Time now = MonotonicNow();
  Kind kind = local ? kLocal : kClient;
  bool has_place = TakePlace(kind, client);
  if (!has_place && now - looked_at_ >= kSearchEvery) {
    ForgetClosed(now);
    has_place = TakePlace(kind, client);
  }
  if (!has_place && !local) has_place = TakePlace(kind = kKept, client);
  if (has_place) {
    connections_.push_back({kind, fd, socket.st_dev, socket.st_ino, client});
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

void ConnectionGate::EndConnections() {
  absl::MutexLock lock(&mu_);
  ForgetClosed(MonotonicNow());
  // Of a socket that gRPC closes just now the number might already be another's; by now nobody here opens any.
  for (const Connection& connection : connections_) shutdown(connection.fd, SHUT_RDWR);
}

int ConnectionGate::num_open() {
  absl::MutexLock lock(&mu_);
  ForgetClosed(MonotonicNow());
  return static_cast<int>(connections_.size());
}

int64_t ConnectionGate::num_refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

}  // namespace switchyard
