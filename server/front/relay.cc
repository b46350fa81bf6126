#include "server/front/relay.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/admission/join_tokens.h"
#include "server/admission/peer_name.h"
#include "server/front/relay_loop.h"

namespace switchyard::server {
namespace {

// The client at the other end; no address: it has gone.
RelayClient ClientOf(int fd) {
  sockaddr_storage from = {};
  socklen_t length = sizeof(from);
  char text[NI_MAXHOST] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) != 0) return {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&from), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  RelayClient client;
  client.address = std::string(absl::StripPrefix(text, "::ffff:"));            // as the gate writes it
  client.port = ntohs(reinterpret_cast<const sockaddr_in*>(&from)->sin_port);  // as in the other family
  client.client = ClientOfAddress(client.address);
  client.is_loopback = rpc::IsLoopback(client.address);
  return client;
}

}  // namespace

Relay::Relay(Options options)
    : shared_(options.memory_bytes, options.calls_a_second, options.call_burst), instance_(DrawToken().substr(0, 8)) {
  for (int i = 0; i < options.threads; ++i) loops_.push_back(std::make_unique<RelayLoop>(this));
}

Relay::~Relay() { Stop(); }

void Relay::Stop() { loops_.clear(); }

void Relay::Take(const RelayListener* listener, int client_fd) {
  UniqueFd fd(client_fd);
  RelayClient client = ClientOf(fd.get());
  if (client.address.empty() || loops_.empty()) return;
  const absl::Time now = MonotonicNow();
  if (!client.is_loopback && shared_.offenders.WaitsUntil(client.client) > now) {
    shared_.turned_away.fetch_add(1);
    return;
  }
  int64_t id = 0;
  {
    absl::MutexLock lock(&mu_);
    id = next_id_++;
  }
  std::string name = RelayedName(client.address, client.port, absl::StrCat(instance_, "-", id));
  auto connection =
      std::make_unique<RelayConnection>(listener, std::move(fd), std::move(client), std::move(name), &shared_, now);
  Publish(connection.get());
  loops_[static_cast<size_t>(id) % loops_.size()]->Add(std::move(connection));
}

void Relay::Publish(RelayConnection* connection) {
  absl::MutexLock lock(&mu_);
  by_name_.emplace(connection->name(), connection);
}

void Relay::Withdraw(RelayConnection* connection) {
  absl::MutexLock lock(&mu_);
  by_name_.erase(connection->name());
}

bool Relay::HasUnread(absl::string_view peer) {
  const std::string name = RelayedNameOfPeer(peer);
  absl::MutexLock lock(&mu_);
  const auto it = by_name_.find(name);
  return it != by_name_.end() && it->second->HasUnread();
}

int Relay::num_waiting_clients() const { return shared_.offenders.num_waiting(MonotonicNow()); }

int OpenNamedPair(const std::string& name, absl::FunctionRef<void(int fd)> pass) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  const size_t size = name.copy(at.sun_path + 1, sizeof(at.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  if (bind(ends[0], reinterpret_cast<const sockaddr*>(&at), length) != 0) {
    close(ends[0]);
    close(ends[1]);
    return -1;
  }
  pass(ends[1]);
  return ends[0];
}

int CopyForAnswers(int client_fd) {
  if (client_fd < 0) return -1;
  const int most = RelayConnection::kBufferBytes;
  setsockopt(client_fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof(most));
  return fcntl(client_fd, F_DUPFD_CLOEXEC, 0);
}

}  // namespace switchyard::server
