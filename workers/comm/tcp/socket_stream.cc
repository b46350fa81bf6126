#include "workers/comm/tcp/socket_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace switchyard::comm {
namespace {

class PlainStream final : public SocketStream {
 public:
  using SocketStream::SocketStream;

  absl::StatusOr<int64_t> Read(const iovec* parts, int num_parts) override {
    msghdr message = MessageOf(parts, num_parts);
    ssize_t got = 0;
    do {
      got = recvmsg(fd(), &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (got <= 0) return absl::UnavailableError("the connection has closed");
    return got;
  }

  int64_t Write(const iovec* parts, int num_parts) override {
    const msghdr message = MessageOf(parts, num_parts);
    ssize_t sent = 0;
    do {
      sent = sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? 0 : sent;
  }

 private:
  static msghdr MessageOf(const iovec* parts, int num_parts) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(num_parts);
    return message;
  }
};

}  // namespace

std::unique_ptr<SocketStream> MakePlainStream(UniqueFd fd) { return std::make_unique<PlainStream>(std::move(fd)); }

}  // namespace switchyard::comm
