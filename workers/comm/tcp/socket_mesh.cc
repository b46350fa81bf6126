#include "workers/comm/tcp/socket_mesh.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/tcp/socket_address.h"

namespace switchyard::comm {
namespace {

constexpr absl::Duration kHelloLimit = absl::Seconds(5);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(50);  // after which a cancellation is noticed
constexpr int kMostStrangers = 64;  // that may be connected and silent; beyond, the oldest goes
constexpr OpKey kHello = {.op = CommOp::kHello, .comm_class = CommClass::kControl, .sequence = -1, .bytes = 0};

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

class Mesh {
 public:
  Mesh(const GroupOptions& options, const SocketSettings& settings, RendezvousStore* store)
      : options_(options), settings_(settings), store_(store), id_(IdOfGroup(options)) {
    assignments_.resize(static_cast<size_t>(options.world));
  }

  absl::StatusOr<std::vector<UniqueFd>> Connect() {
    RETURN_IF_ERROR(Listen());
    for (int peer = 0; peer < options_.rank; ++peer) RETURN_IF_ERROR(StartConnecting(peer));
    for (;;) {
      const int missing = FirstMissing();
      if (missing < 0) return std::move(assignments_);
      if (absl::Now() >= options_.deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", missing, " of ", options_.world,
                                                        " did not connect in epoch ", options_.epoch, " in time"));
      }
      RETURN_IF_ERROR(store_->Cancelled());
      RETURN_IF_ERROR(Step());
    }
  }

 private:
  // A connection of a peer that has not sent its identity yet.
  struct Candidate {
    UniqueFd fd;
    int peer = -1;  // that this rank connects to
    bool connected = false;
    FrameHeader hello = {};
    size_t got = 0;  // bytes of it
    absl::Time give_up = absl::InfiniteFuture();
  };
  using Candidates = std::list<Candidate>;

  std::string KeyOf(int rank) const { return absl::StrCat(GroupPrefix(options_), "socket/", rank); }

  int FirstMissing() const {
    for (int peer = 0; peer < options_.world; ++peer) {
      if (peer != options_.rank && assignments_[static_cast<size_t>(peer)].get() < 0) return peer;
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

  absl::Status StartConnecting(int peer) {
    ASSIGN_OR_RETURN(const std::vector<std::string> text, store_->Get({KeyOf(peer)}, options_.deadline));
    ASSIGN_OR_RETURN(const SocketAddress to, SocketAddress::Parse(text.front()));
    RETURN_IF_ERROR(CheckGroupAddress(to.ip()));
    ASSIGN_OR_RETURN(const SocketAddress own, SocketAddress::Of(options_.address, 0));
    Candidate& candidate = candidates_.emplace_back();
    candidate.peer = peer;
    ASSIGN_OR_RETURN(candidate.fd, NewSocket(own, settings_));
    if (connect(candidate.fd.get(), to.get(), to.size()) == 0 || errno == EINPROGRESS) return absl::OkStatus();
    return Refused(peer, errno);
  }

  static absl::Status Refused(int peer, int error) {
    return absl::UnavailableError(
        absl::StrCat("rank ", peer, " refused the connection, or left: ", std::strerror(error)));
  }

  // Waits for an event, and handles it.
  absl::Status Step() {
    std::vector<pollfd> polled = {{listening_.get(), POLLIN, 0}};
    absl::Time until = std::min(options_.deadline, absl::Now() + kLongestPoll);
    for (const Candidate& candidate : candidates_) {
      polled.push_back(
          {candidate.fd.get(), static_cast<short>(candidate.peer >= 0 && !candidate.connected ? POLLOUT : POLLIN), 0});
      until = std::min(until, candidate.give_up);
    }
    const size_t first_assignment = polled.size();
    for (const UniqueFd& assignment : assignments_)
      polled.push_back({assignment.get(), POLLRDHUP, 0});  // poll ignores -1
    const int64_t wait = absl::ToInt64Milliseconds(until - absl::Now()) + 1;
    if (poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(wait, 0))) < 0 && errno != EINTR) {
      return NetworkError("forming a group");
    }
    for (size_t peer = 0; peer < assignments_.size(); ++peer) {
      if (polled[first_assignment + peer].revents == 0) continue;
      return absl::UnavailableError(absl::StrCat("rank ", peer, " left while the group formed"));
    }
    size_t at = 1;
    for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
      const bool ready = polled[at++].revents != 0;
      ASSIGN_OR_RETURN(const bool stays, ServeCandidate(&*candidate, ready));
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
    const auto is_unknown = [](const Candidate& candidate) { return candidate.peer < 0; };
    if (std::count_if(candidates_.begin(), candidates_.end(), is_unknown) >= kMostStrangers + options_.world) {
      candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_unknown));
    }
    candidates_.push_back({.fd = std::move(fd), .connected = true, .give_up = absl::Now() + kHelloLimit});
    return absl::OkStatus();
  }

  // Whether it stays a candidate.
  absl::StatusOr<bool> ServeCandidate(Candidate* candidate, bool ready) {
    if (!ready) return candidate->give_up > absl::Now() || Refuse("it said nothing");
    if (!candidate->connected) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(candidate->fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return Refused(candidate->peer, error);
      candidate->connected = true;
      if (!SayHello(candidate->fd.get())) return Refused(candidate->peer, ECONNRESET);
      return true;
    }
    char* const hello = reinterpret_cast<char*>(&candidate->hello);
    const ssize_t got = recv(candidate->fd.get(), hello + candidate->got, sizeof(FrameHeader) - candidate->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
      if (candidate->peer >= 0) return Refused(candidate->peer, got == 0 ? ECONNRESET : errno);
      return Refuse("it left before it had said who it is");
    }
    candidate->got += static_cast<size_t>(got);
    if (candidate->got < sizeof(FrameHeader)) return true;
    if (candidate->peer >= 0) return TakeAnswer(candidate);
    return TakeHello(candidate);
  }

  bool SayHello(int fd) const {
    const FrameHeader hello = MakeFrameHeader(id_, kHello, 0, 0);
    return send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(hello));
  }

  absl::StatusOr<bool> TakeAnswer(Candidate* candidate) {
    RETURN_IF_ERROR(CheckFrameHeader(candidate->hello, id_, candidate->peer, kHello, 0));
    assignments_[static_cast<size_t>(candidate->peer)] = std::move(candidate->fd);
    return false;
  }

  bool TakeHello(Candidate* candidate) {
    const int peer = candidate->hello.source;
    const absl::Status status = CheckFrameHeader(candidate->hello, id_, peer, kHello, 0);
    if (!status.ok()) return Refuse(status.message());
    if (peer <= options_.rank || peer >= options_.world || assignments_[static_cast<size_t>(peer)].get() >= 0) {
      return Refuse(absl::StrCat("it says it is rank ", peer));
    }
    if (!SayHello(candidate->fd.get())) return Refuse("it left at once");
    assignments_[static_cast<size_t>(peer)] = std::move(candidate->fd);
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
  const GroupId id_;
  UniqueFd listening_;
  Candidates candidates_;
  std::vector<UniqueFd> assignments_;  // [R]
};

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> ConnectMesh(const GroupOptions& options, const SocketSettings& settings,
                                                  RendezvousStore* store) {
  return Mesh(options, settings, store).Connect();
}

}  // namespace switchyard::comm
