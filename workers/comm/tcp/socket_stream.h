// The bytes of one connection between two ranks, plain or encrypted (socket_tls.h).
//
// Thread-safe; Read belongs to one thread at a time, as does Write.  Neither blocks.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard::comm {

class SocketStream {
 public:
  explicit SocketStream(UniqueFd fd) : fd_(std::move(fd)) {}
  virtual ~SocketStream() = default;
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  // For events and shutdown.
  int fd() const { return fd_.get(); }
  // Fills the parts in their order, as far as bytes are here.  Returns how many; fewer than there is room for: the
  // socket's next event shows that there are more.  Errors: Unavailable (the connection has closed), FailedPrecondition
  // (bytes that are not the peer's).
  virtual absl::StatusOr<int64_t> Read(const iovec* parts, int num_parts) = 0;
  // Returns how many of the bytes the socket took; 0: it is full, or gone.  Then the next Write begins with the same
  // bytes.
  virtual int64_t Write(const iovec* parts, int num_parts) = 0;

 private:
  const UniqueFd fd_;
};

// fd: connected.
std::unique_ptr<SocketStream> MakePlainStream(UniqueFd fd);

}  // namespace switchyard::comm
