// The socket and the TLS session of a relayed connection: what reads and writes them.
#include <linux/sockios.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "server/front/relay_connection.h"

namespace switchyard::server {
namespace {

constexpr size_t kMostDropped = 1 << 20;

}  // namespace

// Where bytes arrive, so that a buffer is no larger than what is in it.  Not thread_local itself: that would take its
// size from the stack of every thread of this process, of which the metrics page's have 100 KB.
char* RelayConnection::Scratch() {
  thread_local const std::unique_ptr<char[]> bytes(new char[RelayConnection::kBufferBytes]);
  return bytes.get();
}

bool RelayConnection::HasMore() const {
  int bytes = 0;
  if (up_judged_ < up_.size() || (ssl_ != nullptr && SSL_pending(ssl_.get()) > 0)) return true;
  if (guard_.has_value() && guard_->has_part_of_message()) return true;
  return ioctl(client_fd_.get(), FIONREAD, &bytes) == 0 && bytes > 0;
}

bool RelayConnection::HasUnread() {
  absl::MutexLock lock(&mu_);
  int bytes = 0;
  if (has_up_.load(std::memory_order_relaxed)) return true;
  if (ioctl(client_fd_.get(), FIONREAD, &bytes) == 0 && bytes > 0) return true;
  return ioctl(inner_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

// Closing a socket with unread bytes takes the reason from the client.  What comes is not even copied (MSG_TRUNC).
bool RelayConnection::Discard(absl::Time now) {
  const ssize_t got = recv(client_fd_.get(), Scratch(), kBufferBytes, MSG_DONTWAIT | MSG_TRUNC);
  if (got > 0) {
    dropped_ += static_cast<size_t>(got);
    if (dropped_ >= lingers_beyond_) {
      lingers_beyond_ = dropped_ + kLeastDropped;
      deadline_ = std::min(now + kLingerLimit, lingers_until_);
    }
  }
  const bool failed = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  if (failed || dropped_ > (listener_->http2 ? kMostDropped : kHttp1MostDropped)) stage_ = Stage::kOver;
  return got > 0;
}

RelayConnection::Io RelayConnection::Receive(size_t most, std::string* bytes) {
  size_t got = 0;
  Io io = Io::kMoved;
  if (ssl_ != nullptr) {
    ERR_clear_error();
    io = AfterSsl(SSL_read_ex(ssl_.get(), Scratch(), most, &got));
  } else {
    const ssize_t count = recv(client_fd_.get(), Scratch(), most, MSG_DONTWAIT);
    got = count > 0 ? static_cast<size_t>(count) : 0;
    if (count == 0) io = Io::kEnd;
    if (count < 0) io = errno == EAGAIN || errno == EINTR ? Io::kBlocked : Io::kFailed;
  }
  bytes->append(Scratch(), got);
  return io;
}

RelayConnection::Io RelayConnection::Send(absl::string_view bytes, size_t* sent) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return AfterSsl(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), sent));
  }
  const ssize_t count = send(client_fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  *sent = count > 0 ? static_cast<size_t>(count) : 0;
  if (count >= 0) return Io::kMoved;
  return errno == EAGAIN || errno == EINTR ? Io::kBlocked : Io::kFailed;
}

RelayConnection::Io RelayConnection::AfterSsl(int result) {
  ssl_wants_write_ = false;
  if (result == 1) return Io::kMoved;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_WRITE:
      ssl_wants_write_ = true;
      return Io::kBlocked;
    case SSL_ERROR_WANT_READ:
      return Io::kBlocked;
    case SSL_ERROR_ZERO_RETURN:
      return Io::kEnd;
    default:
      return Io::kFailed;
  }
}

}  // namespace switchyard::server
