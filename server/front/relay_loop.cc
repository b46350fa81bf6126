#include "server/front/relay_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "server/front/relay.h"

namespace switchyard::server {
namespace {

constexpr int kMostEvents = 64;
constexpr absl::Duration kLongestSleep = absl::Seconds(10);
constexpr uintptr_t kIsInner = 1;  // in the pointer that epoll keeps of an entry

void Signal(int eventfd) {
  const uint64_t one = 1;
  while (write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace

RelayLoop::RelayLoop(Relay* relay)
    : relay_(relay), epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {.events = EPOLLIN, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = std::thread([this] { Run(); });
}

RelayLoop::~RelayLoop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  Signal(wake_.get());
  thread_.join();
}

void RelayLoop::Add(std::unique_ptr<RelayConnection> connection) {
  {
    absl::MutexLock lock(&mu_);
    new_.push_back(std::move(connection));
  }
  Signal(wake_.get());
}

void RelayLoop::Run() {
  epoll_event events[kMostEvents];
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events, kMostEvents, TimeoutMs(MonotonicNow()));
    if (count < 0 && errno != EINTR) LogError("a relay of connections: epoll_wait: ", std::strerror(errno));
    const absl::Time now = MonotonicNow();
    bool woken = false;
    for (int i = 0; i < count; ++i) {
      const auto tagged = reinterpret_cast<uintptr_t>(events[i].data.ptr);
      const auto entry = entries_.find(reinterpret_cast<Entry*>(tagged & ~kIsInner));
      woken = woken || tagged == 0;
      // An entry may have ended with an earlier event.
      if (entry == entries_.end()) continue;
      const bool ended = (events[i].events & (EPOLLERR | EPOLLHUP)) != 0, is_inner = (tagged & kIsInner) != 0;
      if (ended && is_inner) entry->second->connection->InnerGone(now);
      const bool is_readable = ended || (events[i].events & EPOLLIN) != 0;
      RunOne(entry->second.get(), ended && !is_inner,
             {.client = is_readable && !is_inner, .inner = is_readable && is_inner}, now);
    }
    while (!due_.empty() && due_.begin()->first <= now) {
      Entry* const entry = due_.begin()->second;
      RunOne(entry, /*gone=*/false, /*readable=*/{}, now);
      if (entries_.contains(entry) && entry->due <= now) break;  // it has more to do; others first
    }
    if (!woken) continue;
    uint64_t number;
    while (read(wake_.get(), &number, sizeof(number)) < 0 && errno == EINTR) {
    }
    AcceptNew(now);
    absl::MutexLock lock(&mu_);
    if (stopping_) break;
  }
  for (const auto& [key, entry] : entries_) relay_->Withdraw(entry->connection.get());
  entries_.clear();
}

int RelayLoop::TimeoutMs(absl::Time now) const {
  if (due_.empty()) return -1;
  const absl::Duration left = due_.begin()->first - now;
  if (left <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLongestSleep))) + 1;
}

void RelayLoop::AcceptNew(absl::Time now) {
  std::vector<std::unique_ptr<RelayConnection>> added;
  {
    absl::MutexLock lock(&mu_);
    added.swap(new_);
  }
  for (std::unique_ptr<RelayConnection>& connection : added) {
    auto entry = std::make_unique<Entry>();
    Entry* const key = entry.get();
    entry->connection = std::move(connection);
    due_.emplace(key->due, key);
    Watch(EPOLL_CTL_ADD, key->connection->client_fd(), 0, key, 0);
    entries_.emplace(key, std::move(entry));
    RunOne(key, /*gone=*/false, /*readable=*/{}, now);
  }
}

void RelayLoop::Watch(int operation, int fd, uint32_t events, Entry* entry, uintptr_t tag) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) | tag);
  epoll_ctl(epoll_.get(), operation, fd, &event);
}

// Epoll always reports a closed end, so it must not know one that cannot be read.
void RelayLoop::WatchInner(Entry* entry) {
  const int fd = entry->connection->inner_fd();
  const uint32_t events = entry->connection->inner_events();
  if (fd < 0) {  // closed, so epoll has forgotten it
    entry->inner_fd = -1;
  } else if (entry->inner_fd < 0) {
    if (events == 0) return;
    Watch(EPOLL_CTL_ADD, fd, events, entry, kIsInner);
    entry->inner_fd = fd;
  } else if (events != entry->inner_events) {
    Watch(events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fd, events, entry, kIsInner);
    if (events == 0) entry->inner_fd = -1;
  }
  entry->inner_events = events;
}

void RelayLoop::RunOne(Entry* entry, bool gone, RelayConnection::Readable readable, absl::Time now) {
  RelayConnection* const connection = entry->connection.get();
  connection->Run(gone, readable, now);
  if (connection->is_over()) {
    relay_->Withdraw(connection);
    due_.erase({entry->due, entry});
    // The server behind may have a copy of it, which this ends, too.
    shutdown(connection->client_fd(), SHUT_RDWR);
    Watch(EPOLL_CTL_DEL, connection->client_fd(), 0, entry, 0);
    entries_.erase(entry);  // closing the other socket removes it from epoll
    return;
  }
  WatchInner(entry);
  const uint32_t events = connection->client_events();
  if (events != entry->client_events) Watch(EPOLL_CTL_MOD, connection->client_fd(), events, entry, 0);
  entry->client_events = events;
  if (connection->due() == entry->due) return;
  due_.erase({entry->due, entry});
  entry->due = connection->due();
  due_.emplace(entry->due, entry);
}

}  // namespace switchyard::server
