#include "workers/comm/tcp/socket_mesh.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/tcp/socket_address.h"
#include "workers/comm/tcp/socket_handshake.h"
#include "workers/comm/tcp/socket_tls.h"

namespace switchyard::comm {
namespace {

constexpr absl::Duration kHelloLimit = absl::Seconds(5);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(50);  // after which a cancellation is noticed
constexpr int kMostStrangers = 64;  // that may be connected and silent; beyond, the oldest goes

absl::Status NetworkError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<UniqueFd> NewSocket(const SocketAddress& own, const SocketSettings& settings) {
  UniqueFd fd(socket(own.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return NetworkError("the system gives no socket");
  // Accepted sockets inherit these options.
  const int yes = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  if (settings.send_buffer_bytes > 0) {
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &settings.send_buffer_bytes, sizeof(settings.send_buffer_bytes));
  }
  if (settings.unsent_bytes > 0) {
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &settings.unsent_bytes, sizeof(settings.unsent_bytes));
  }
  if (bind(fd.get(), own.get(), own.size()) != 0) {
    return NetworkError(absl::StrCat("group address ", own.ip(), " is not this host's"));
  }
  return fd;
}

using Streams = std::vector<std::unique_ptr<SocketStream>>;

class Mesh {
 public:
  Mesh(const GroupOptions& options, const SocketSettings& settings, RendezvousStore* store)
      : options_(options),
        settings_(settings),
        store_(store),
        self_{.id = IdOfGroup(options), .secret = options.token},
        peers_(static_cast<size_t>(options.world)) {}

  absl::StatusOr<Streams> Connect() {
    if (options_.encrypt_links) {
      ASSIGN_OR_RETURN(tls_, TlsContext::Make(options_.token));
      self_.tls = tls_.get();
    }
    RETURN_IF_ERROR(Listen());
    RETURN_IF_ERROR(StartConnecting());
    for (;;) {
      const int missing = FirstMissing();
      if (missing < 0) return std::move(peers_);
      if (MonotonicNow() >= options_.deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", missing, " of ", options_.world,
                                                        " did not connect in epoch ", options_.epoch, " in time"));
      }
      RETURN_IF_ERROR(store_->Cancelled());
      RETURN_IF_ERROR(Step());
    }
  }

 private:
  // A connection whose peer is not proven yet.
  struct Candidate {
    SocketHandshake handshake;
    absl::Time give_up = absl::InfiniteFuture();
    bool got_more_time = false;
  };
  using Candidates = std::list<Candidate>;

  std::string KeyOf(int rank) const { return absl::StrCat(GroupPrefix(options_), "socket/", rank); }

  int FirstMissing() const {
    for (int peer = 0; peer < options_.world; ++peer) {
      if (peer != options_.rank && peers_[static_cast<size_t>(peer)] == nullptr) return peer;
    }
    return -1;
  }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(const SocketAddress own, SocketAddress::Of(options_.address, 0));
    ASSIGN_OR_RETURN(listening_, NewSocket(own, settings_));
    if (listen(listening_.get(), options_.world + kMostStrangers) != 0) return NetworkError("listening");
    ASSIGN_OR_RETURN(const SocketAddress at, SocketAddress::OfSocket(listening_.get()));
    return store_->Set(KeyOf(options_.rank), at.ToString());
  }

  // Waits for the addresses of all lower ranks before it connects to any: who is connected and waits for an address
  // says nothing, and is taken for a stranger.
  absl::Status StartConnecting() {
    if (options_.rank == 0) return absl::OkStatus();
    std::vector<std::string> keys;
    for (int peer = 0; peer < options_.rank; ++peer) keys.push_back(KeyOf(peer));
    ASSIGN_OR_RETURN(const std::vector<std::string> addresses, store_->Get(keys, options_.deadline));
    for (int peer = 0; peer < options_.rank; ++peer) {
      RETURN_IF_ERROR(StartConnectingTo(peer, addresses[static_cast<size_t>(peer)]));
    }
    return absl::OkStatus();
  }

  absl::Status StartConnectingTo(int peer, const std::string& address) {
    ASSIGN_OR_RETURN(const SocketAddress to, SocketAddress::Parse(address));
    RETURN_IF_ERROR(CheckGroupAddress(to.ip()));
    ASSIGN_OR_RETURN(const SocketAddress own, SocketAddress::Of(options_.address, 0));
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(own, settings_));
    if (connect(fd.get(), to.get(), to.size()) != 0 && errno != EINPROGRESS) {
      return WhyNot(peer, absl::UnavailableError(std::strerror(errno)));
    }
    candidates_.push_back({.handshake = SocketHandshake(&self_, std::move(fd), peer)});
    return absl::OkStatus();
  }

  static absl::Status WhyNot(int peer, const absl::Status& status) {
    const char* const what = absl::IsUnavailable(status) ? " refused the connection, or left: " : "'s connection: ";
    return absl::Status(status.code(), absl::StrCat("rank ", peer, what, status.message()));
  }

  // Waits for an event, and handles it.
  absl::Status Step() {
    const absl::Time begin = MonotonicNow();
    std::vector<pollfd> polled = {{listening_.get(), POLLIN, 0}};
    absl::Time until = std::min(options_.deadline, begin + kLongestPoll);
    for (const Candidate& candidate : candidates_) {
      polled.push_back({candidate.handshake.fd(), candidate.handshake.events(), 0});
      until = std::min(until, candidate.give_up);
    }
    const size_t first_peer = polled.size();
    for (const auto& peer : peers_) polled.push_back({peer == nullptr ? -1 : peer->fd(), POLLRDHUP, 0});
    const int64_t wait = absl::ToInt64Milliseconds(until - MonotonicNow()) + 1;
    if (poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(wait, 0))) < 0) {
      return errno == EINTR ? absl::OkStatus() : NetworkError("forming a group");
    }
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (polled[first_peer + peer].revents == 0) continue;
      return absl::UnavailableError(absl::StrCat("rank ", peer, " left while the group formed"));
    }
    size_t at = 1;
    for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
      const bool ready = polled[at++].revents != 0;
      ASSIGN_OR_RETURN(const bool stays, ServeCandidate(&*candidate, ready, begin));
      candidate = stays ? std::next(candidate) : candidates_.erase(candidate);
    }
    return (polled[0].revents != 0) ? Accept() : absl::OkStatus();
  }

  absl::Status Accept() {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      const bool again = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      return again ? absl::OkStatus() : NetworkError("accepting a connection");
    }
    const auto is_accepted = [](const Candidate& candidate) { return candidate.handshake.accepted(); };
    if (std::count_if(candidates_.begin(), candidates_.end(), is_accepted) >= kMostStrangers + options_.world) {
      candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_accepted));
    }
    candidates_.push_back(
        {.handshake = SocketHandshake(&self_, std::move(fd), -1), .give_up = MonotonicNow() + kHelloLimit});
    return absl::OkStatus();
  }

  // Whether it stays a candidate.  ready: a poll that began at `begin` says that it has something.
  absl::StatusOr<bool> ServeCandidate(Candidate* candidate, bool ready, absl::Time begin) {
    constexpr absl::string_view kLate = "it did not say and prove who it is in time";
    SocketHandshake& handshake = candidate->handshake;
    const bool late = candidate->give_up <= begin;
    if (!ready && !late) return true;
    if (!ready) return Refuse(kLate);
    const absl::StatusOr<bool> proven = handshake.Advance();
    if (!proven.ok()) {
      if (!handshake.accepted()) return WhyNot(handshake.peer(), proven.status());
      return Refuse(proven.status().message());
    }
    if (!*proven && late) {
      // What it said may have waited for this rank, which stood still: it gets time for the rest, once.
      if (std::exchange(candidate->got_more_time, true)) return Refuse(kLate);
      candidate->give_up = MonotonicNow() + kHelloLimit;
    }
    if (!*proven) return true;
    std::unique_ptr<SocketStream>& peer = peers_[static_cast<size_t>(handshake.peer())];
    if (peer != nullptr) return Refuse(absl::StrCat("it says it is rank ", handshake.peer(), ", which is connected"));
    peer = handshake.Take();
    return false;
  }

  // Logs why the candidate is closed.  Returns false.
  bool Refuse(absl::string_view why) const {
    LogWarn("rank ", options_.rank, " of epoch ", options_.epoch, " refuses a connection: ", why);
    return false;
  }

  const GroupOptions& options_;
  const SocketSettings& settings_;
  RendezvousStore* const store_;
  std::unique_ptr<TlsContext> tls_;  // null: plain links
  SocketHandshake::Self self_;
  UniqueFd listening_;
  Candidates candidates_;
  Streams peers_;  // [R] proven
};

}  // namespace

absl::StatusOr<Streams> ConnectMesh(const GroupOptions& options, const SocketSettings& settings,
                                    RendezvousStore* store) {
  return Mesh(options, settings, store).Connect();
}

}  // namespace switchyard::comm
