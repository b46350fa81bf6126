#include "tests/bench/placement/link_mesh.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/local/gather_work.h"

namespace switchyard::bench {
namespace {

constexpr int kPort = 7700;
constexpr absl::Duration kPatience = absl::Minutes(1);

absl::Status Failed(const char* what, int peer) {
  return absl::UnavailableError(absl::StrCat(what, " rank ", peer, ": ", std::strerror(errno)));
}

sockaddr_in AddressOf(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return address;
}

// A message fits, nobody waits for more to send, and nobody waits for ever.
void Prepare(int socket) {
  const int one = 1, room = LinkMesh::kMaxMessage;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  const timeval patience = absl::ToTimeval(kPatience);
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

// Bytes of a message that leave in that turn.
int64_t PieceOf(int64_t bytes, int piece) {
  if (bytes < LinkMesh::kLeastCut) return piece == 0 ? bytes : 0;
  return bytes * (piece + 1) / LinkMesh::kPieces - bytes * piece / LinkMesh::kPieces;
}

// Until the peer listens.
absl::StatusOr<int> Reach(const std::string& address, int rank, int peer) {
  const sockaddr_in to = AddressOf(address);
  const absl::Time end = absl::Now() + kPatience;
  for (;;) {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Prepare(made);
    if (connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
        send(made, &rank, sizeof(rank), MSG_NOSIGNAL) == sizeof(rank)) {
      return made;
    }
    close(made);
    if (absl::Now() > end) return Failed("cannot connect to", peer);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkMesh>> LinkMesh::Connect(int rank, const std::vector<std::string>& addresses) {
  std::unique_ptr<LinkMesh> mesh(new LinkMesh(rank, addresses.size()));
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  Prepare(listener);
  const sockaddr_in own = AddressOf(addresses[static_cast<size_t>(rank)]);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0 || listen(listener, 64) != 0) {
    return Failed("cannot listen as", rank);
  }
  for (int peer = 0; peer < rank; ++peer) {
    ASSIGN_OR_RETURN(mesh->sockets_[peer], Reach(addresses[static_cast<size_t>(peer)], rank, peer));
  }
  for (int i = rank + 1; i < mesh->world(); ++i) {
    const int from = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int peer = -1;
    if (from < 0 || recv(from, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer) || peer <= rank ||
        peer >= mesh->world() || mesh->sockets_[peer] >= 0) {
      return Failed("a stranger instead of", i);
    }
    Prepare(from);
    mesh->sockets_[peer] = from;
  }
  close(listener);
  return mesh;
}

LinkMesh::~LinkMesh() {
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

absl::Status LinkMesh::Send(int peer, int64_t bytes) {
  for (int64_t sent = 0; sent < bytes;) {
    const ssize_t n = send(sockets_[peer], nothing_.data(), static_cast<size_t>(bytes - sent), MSG_NOSIGNAL);
    if (n <= 0) return Failed("cannot send to", peer);
    sent += n;
  }
  return absl::OkStatus();
}

absl::Status LinkMesh::Receive(int peer, int64_t bytes) {
  for (int64_t got = 0; got < bytes;) {
    // MSG_TRUNC: counted and thrown away.
    const ssize_t n = recv(sockets_[peer], nullptr, static_cast<size_t>(bytes - got), MSG_TRUNC | MSG_WAITALL);
    if (n <= 0) return Failed("nothing from", peer);
    got += n;
  }
  return absl::OkStatus();
}

absl::Status LinkMesh::Exchange(absl::Span<const int64_t> out, absl::Span<const int64_t> in) {
  for (const int64_t bytes : out) {
    if (bytes <= kMaxMessage) continue;
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes, " bytes; at most ", kMaxMessage));
  }
  for (int piece = 0; piece < kPieces; ++piece) {
    // Each rank begins with its right neighbour, so that nobody is everybody's first.
    for (int i = 1; i < world(); ++i) {
      const int peer = (rank_ + i) % world();
      RETURN_IF_ERROR(Send(peer, PieceOf(out[peer], piece)));
    }
  }
  for (int i = 1; i < world(); ++i) {
    const int peer = (rank_ + world() - i) % world();
    RETURN_IF_ERROR(Receive(peer, in[peer]));
  }
  return absl::OkStatus();
}

absl::Status LinkMesh::Gather(int64_t bytes) {
  for (const comm::GatherRound& round : comm::GatherRounds(world())) {
    RETURN_IF_ERROR(Send((rank_ + round.distance) % world(), round.blocks * bytes));
    RETURN_IF_ERROR(Receive((rank_ + world() - round.distance) % world(), round.blocks * bytes));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::bench
