// The sending direction of a connection: sends what is queued for a peer, as far as its socket accepts it.
//
// A caller that queues a message writes at once what the socket accepts; the group's I/O thread writes the rest when
// the socket accepts more.  Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/local/message.h"
#include "workers/comm/tcp/socket_send_queue.h"
#include "workers/comm/tcp/socket_stream.h"
#include "workers/comm/tcp/socket_traffic.h"
#include "workers/comm/tcp/socket_wire.h"

namespace switchyard::comm {

inline constexpr int64_t kTurnBytes = 512 << 10;  // that a connection reads or writes in one turn

// How a wait for a peer ended.  kElsewhere: another peer's connection has closed.
enum class SocketEnd : uint8_t { kDone, kClosed, kAborted, kLate, kElsewhere };

class SocketSender {
 public:
  // stream, traffic: borrowed.
  SocketSender(SocketStream* stream, const SocketFraming& framing, SocketTraffic* traffic)
      : stream_(*stream), queue_(framing, traffic) {}

  // Grants the peer messages that this rank receives, and sends one of its own (null: none) as far as it may go now.
  // True: there is more to write (Write).  False: nothing may go, or the socket is full; epoll wakes the I/O thread
  // when it accepts more.
  bool Send(absl::Span<const MessageId> grants, const MessageId* id, Message message) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes for one turn; returns the same as Send.
  bool Write() ABSL_LOCKS_EXCLUDED(mu_);
  // Records the peer's grants.  FailedPrecondition: it may not grant these.
  absl::Status Granted(absl::Span<const MessageId> ids) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until the whole message is in the kernel (kDone); other values say why it is not.
  SocketEnd AwaitSent(const MessageId& id, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends every wait with kClosed (the connection is gone) or kAborted, which replaces kClosed.
  void End(SocketEnd why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Returns the bytes written; 0: nothing may go now, or the socket is full or gone.
  int64_t WriteOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SocketStream& stream_;
  absl::Mutex mu_;
  SocketSendQueue queue_ ABSL_GUARDED_BY(mu_);
  SocketEnd end_ ABSL_GUARDED_BY(mu_) = SocketEnd::kDone;  // kDone: it has not ended
};

}  // namespace switchyard::comm
