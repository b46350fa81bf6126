#include "workers/comm/tcp/socket_io.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

constexpr int kMostEvents = 64;   // of one epoll_wait
constexpr int kMostUnread = 256;  // reads of bytes that no call needs any more

absl::Status NoRoom(const char* what) {
  return absl::UnavailableError(absl::StrCat("the system gives no ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketIo>> SocketIo::Start(Streams streams, std::shared_ptr<MessagePool> pool,
                                                          const Options& options) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (epoll.get() < 0) return NoRoom("epoll");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return NoRoom("eventfd");
  std::unique_ptr<SocketIo> io(
      new SocketIo(std::move(streams), std::move(pool), options, std::move(epoll), std::move(wake)));
  RETURN_IF_ERROR(io->Watch());
  io->thread_ = std::thread([started = io.get()] { started->Run(); });
  return io;
}

SocketIo::SocketIo(Streams streams, std::shared_ptr<MessagePool> pool, const Options& options, UniqueFd epoll,
                   UniqueFd wake)
    : options_(options), epoll_(std::move(epoll)), wake_(std::move(wake)) {
  for (size_t r = 0; r < streams.size(); ++r) {
    const bool is_peer = streams[r] != nullptr;
    connections_.push_back(
        is_peer ? std::make_unique<Connection>(static_cast<int>(r), std::move(streams[r]), pool, options) : nullptr);
  }
}

// Edge-triggered: an event comes when a socket changes, so that no interest is switched on and off.
absl::Status SocketIo::Watch() {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) return NoRoom("event");
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (connection == nullptr) continue;
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = connection.get();
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->fd(), &event) != 0) return NoRoom("event");
  }
  return absl::OkStatus();
}

SocketIo::~SocketIo() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  // Closing a connection with unread bytes resets the peer's, which may then lose our last message.
  std::array<char, 4096> unread;
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (connection == nullptr) continue;
    shutdown(connection->fd(), SHUT_WR);
    for (int i = 0; i < kMostUnread && recv(connection->fd(), unread.data(), unread.size(), MSG_DONTWAIT) > 0; ++i) {
    }
  }
}

void SocketIo::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // full: it is awake
}

void SocketIo::WriteSoon(int peer) {
  connections_[static_cast<size_t>(peer)]->write_soon = true;
  Wake();
}

void SocketIo::Abort() {
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (connection == nullptr) continue;
    connection->receiver.End(SocketEnd::kAborted);
    connection->sender.End(SocketEnd::kAborted);
    shutdown(connection->fd(), SHUT_RDWR);
  }
}

void SocketIo::Run() {
  bool more = true;
  while (!stop_) {
    AwaitEvents(!more);
    more = false;
    for (const std::unique_ptr<Connection>& connection : connections_) {
      if (connection != nullptr && connection->open && Serve(connection.get())) more = true;
    }
  }
}

void SocketIo::AwaitEvents(bool block) {
  std::array<epoll_event, kMostEvents> events;
  const int num_events = epoll_wait(epoll_.get(), events.data(), kMostEvents, block ? -1 : 0);
  for (int i = 0; i < num_events; ++i) {
    auto* const connection = static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
    const uint32_t what = events[static_cast<size_t>(i)].events;
    if (connection == nullptr) {
      uint64_t times = 0;
      (void)!read(wake_.get(), &times, sizeof(times));
      continue;
    }
    if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection->hung_up = true;
    if ((what & ~static_cast<uint32_t>(EPOLLOUT)) != 0) connection->may_read = true;
    if ((what & EPOLLOUT) != 0) connection->may_write = true;
  }
}

bool SocketIo::Serve(Connection* connection) {
  if (connection->write_soon.exchange(false)) connection->may_write = true;
  // Reads first, as grants permit writes.
  if (connection->may_read && !Read(connection)) {
    connection->open = false;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd(), nullptr);
    connection->receiver.End(SocketEnd::kClosed);
    connection->sender.End(SocketEnd::kClosed);
    for (const std::unique_ptr<Connection>& other : connections_) {
      if (other != nullptr && other.get() != connection) other->receiver.EndedElsewhere();
    }
    return false;
  }
  if (connection->may_write) connection->may_write = connection->sender.Write();
  return connection->may_read || connection->may_write;
}

// False: the connection has ended.
bool SocketIo::Read(Connection* connection) {
  std::vector<MessageId> grants;
  const absl::StatusOr<bool> more = connection->receiver.Read(&grants);
  absl::Status status = more.status();
  if (status.ok() && !grants.empty()) {
    status = connection->sender.Granted(grants);
    connection->may_write = true;
  }
  if (absl::IsFailedPrecondition(status)) options_.on_broken(connection->peer, status);
  // (A connection that has hung up is read to its end, as no further edge comes.)
  connection->may_read = status.ok() && (*more || connection->hung_up);
  return status.ok();
}

}  // namespace switchyard::comm
