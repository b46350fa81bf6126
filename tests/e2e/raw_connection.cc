#include "tests/e2e/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "proto/support/host_port.h"
#include "tests/e2e/http2_frames.h"

namespace switchyard {
namespace {

constexpr size_t kMostSeenBytes = size_t{1} << 20;  // that are kept of each kind
constexpr size_t kMostUnsentBytes = size_t{1} << 20;

sockaddr_in AddressOf(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

uint32_t Number(const std::string& bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = at; i < at + count && i < bytes.size(); ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

void Keep(const std::string& bytes, std::string* to) {
  to->append(bytes, 0, kMostSeenBytes - std::min(kMostSeenBytes, to->size()));
}

int Milliseconds(absl::Duration time) {
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(time, absl::ZeroDuration())));
}

}  // namespace

RawConnection::RawConnection(const std::string& address, const Options& options)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), answers_(options.answers) {
  const int on = 1;
  if (options.receive_buffer > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer, sizeof(options.receive_buffer));
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!options.from.empty()) {
    setsockopt(fd_, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    const sockaddr_in from = AddressOf(options.from, 0);
    bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from));
  }
  const timeval limit = {2, 0};
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // bounds connect
  const auto at = rpc::SplitHostPort(address);
  if (at.ok()) {
    const sockaddr_in to = AddressOf(at->host, at->port);
    was_connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ended_ = !was_connected_;
}

RawConnection::~RawConnection() { close(fd_); }

bool RawConnection::Send(const std::string& bytes, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  for (size_t sent = 0; !ended_;) {
    if (sent == bytes.size()) return true;
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      bytes_sent_ += count;
    } else if (errno != EAGAIN) {
      ended_ = true;
    } else {
      if (absl::Now() >= end) return false;
      pollfd wait = {fd_, POLLOUT, 0};
      poll(&wait, 1, Milliseconds(end - absl::Now()) + 1);
    }
  }
  return false;
}

bool RawConnection::Read(absl::Duration limit, bool keep, size_t most) {
  pollfd wait = {fd_, POLLIN, 0};
  if (ended_ || poll(&wait, 1, Milliseconds(limit)) == 0) return !ended_;
  char buffer[65536];
  while (most > 0 && !ended_) {
    const ssize_t count = recv(fd_, buffer, std::min(most, sizeof(buffer)), MSG_DONTWAIT);
    if (count > 0 && keep) received_.append(buffer, static_cast<size_t>(count));
    if (count < 0 && errno == EAGAIN) break;
    ended_ = count <= 0;
    most -= ended_ ? 0 : static_cast<size_t>(count);
  }
  return !ended_;
}

bool RawConnection::Discard(size_t most) { return Read(absl::ZeroDuration(), false, most); }

bool RawConnection::Pump(absl::Duration limit) {
  Read(limit, true);
  HandleFrames();
  if (!answers_) unsent_.clear();
  Flush();
  return !ended_;
}

bool RawConnection::AwaitEnd(absl::Duration limit) {
  for (const absl::Time end = absl::Now() + limit; !ended_ && absl::Now() < end;) Pump(absl::Milliseconds(20));
  return ended_;
}

void RawConnection::HandleFrames() {
  Keep(received_.substr(0, 4096), &seen_.bytes);
  size_t at = 0;
  while (received_.size() - at >= http2::kFrameHeaderBytes) {
    const size_t length = Number(received_, at, 3);
    if (length > kMostSeenBytes) {  // no HTTP/2: an answer in plain text, say
      received_.clear();
      return;
    }
    if (received_.size() - at < http2::kFrameHeaderBytes + length) break;
    Handle(received_[at + 3], received_[at + 4], Number(received_, at + 5, 4) & 0x7fffffff,
           received_.substr(at + http2::kFrameHeaderBytes, length));
    at += http2::kFrameHeaderBytes + length;
  }
  received_.erase(0, at);
}

void RawConnection::Handle(char type, char flags, uint32_t stream, const std::string& payload) {
  const bool is_ack = (flags & http2::kAck) != 0;
  switch (type) {
    case http2::kSettings:
      if (is_ack) break;
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (Number(payload, at, 2) != 4) continue;
        const int64_t first = Number(payload, at + 2, 4);
        for (auto& [id, open] : streams_) open.window += first - first_window_;
        first_window_ = first;
      }
      unsent_ += http2::Frame(http2::kSettings, http2::kAck, 0, "");
      break;
    case http2::kPing:
      if (!is_ack) unsent_ += http2::Frame(http2::kPing, http2::kAck, 0, payload);
      break;
    case http2::kWindowUpdate:
      if (stream == 0) window_ += Number(payload, 0, 4);
      if (const auto at = streams_.find(stream); at != streams_.end()) at->second.window += Number(payload, 0, 4);
      break;
    case http2::kHeaders:
    case http2::kContinuation:
      Keep(payload, &seen_.headers[stream]);
      if (type == http2::kHeaders && (flags & http2::kEndStream) != 0) streams_.erase(stream);
      break;
    case http2::kData:
      Keep(payload, &seen_.messages[stream]);
      break;
    case http2::kReset:
      seen_.resets[stream] = Number(payload, 0, 4);
      streams_.erase(stream);
      break;
    case http2::kGoAway:
      seen_.goaway = Number(payload, 4, 4);
      break;
    default:
      break;
  }
}

void RawConnection::OpenStream(uint32_t stream, const std::string& headers, std::shared_ptr<const std::string> bytes) {
  unsent_ += headers;
  streams_[stream] = {std::move(bytes), 0, first_window_};
}

bool RawConnection::SendMessages() {
  bool is_left = false;
  for (auto& [id, open] : streams_) {
    while (open.sent < open.bytes->size() && unsent_.size() < kMostUnsentBytes) {
      const int64_t room = std::min({window_, open.window, static_cast<int64_t>(http2::kMostFrameBytes)});
      if (room <= 0) break;
      const size_t count = std::min(static_cast<size_t>(room), open.bytes->size() - open.sent);
      const bool is_last = open.sent + count == open.bytes->size();
      unsent_ += http2::Frame(http2::kData, is_last ? http2::kEndStream : 0, id, open.bytes->substr(open.sent, count));
      open.sent += count;
      open.window -= static_cast<int64_t>(count);
      window_ -= static_cast<int64_t>(count);
    }
    is_left = is_left || open.sent < open.bytes->size();
  }
  Flush();
  return is_left || !unsent_.empty();
}

void RawConnection::Flush() {
  while (!unsent_.empty() && !ended_) {
    const ssize_t count = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) {
      ended_ = ended_ || errno != EAGAIN;
      return;
    }
    bytes_sent_ += count;
    unsent_.erase(0, static_cast<size_t>(count));
  }
}

}  // namespace switchyard
