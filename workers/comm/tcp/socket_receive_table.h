// The messages that arrive from one peer, by id, and the memory that their bytes go to.
//
// A message of a call that is launched here (Post) is received into its final memory.  The beginning of any other
// message is kept in a buffer that grows with it, and is copied once the call is launched.  A peer that sends more of
// these than it may (socket_wire.h), or in smaller pieces, breaks the protocol, so their memory is bounded.  No I/O, no
// clock.
// Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/local/message.h"
#include "workers/comm/tcp/socket_wire.h"

namespace switchyard::comm {

class SocketReceiveTable {
 public:
  explicit SocketReceiveTable(std::shared_ptr<MessagePool> pool) : pool_(std::move(pool)) {}

  // Records that the call that receives the message is launched.  False: it was recorded before, and nothing changes.
  bool Post(const MessageId& id);
  // Begins a frame.  FailedPrecondition: its message is complete, the frame is longer than its message, gives another
  // length than earlier frames, or is more, or a smaller piece, than may come before the call's launch.
  // REQUIRES: CheckRecord; Room() is empty.
  absl::Status Begin(const RecordHeader& frame);
  // The memory for the rest of the frame; empty between frames.  Valid until the next call of another function.
  absl::Span<char> Room();
  // The first `bytes` bytes of Room have been received.
  void Received(int64_t bytes);

  // Whether the message is complete and its call is launched.
  bool IsWhole(const MessageId& id) const;
  // Received bytes and all bytes of a message, headers included; 0 of 0: nothing has been received.
  struct Share {
    int64_t got = 0, bytes = 0;
  };
  Share Came(const MessageId& id) const;
  // The message, with its payload's length from its frames; the caller checks its FrameHeader.  REQUIRES: IsWhole.
  Message Take(const MessageId& id);
  // A call that the peer launched and this rank did not, if the head of such a message has been received.
  std::optional<OpKey> Unclaimed() const;

 private:
  struct Incoming {
    bool posted = false;
    int64_t bytes = 0;  // FrameHeader included; 0 = nothing has been received
    int64_t got = 0;
    Message message = {};  // before Post it has room for little more than was received
  };
  // Makes room for `bytes` bytes of the message; for all of it if it is posted.
  void MakeRoom(Incoming* incoming, int64_t bytes);

  const std::shared_ptr<MessagePool> pool_;  // shared with the group's communicators and messages
  std::map<MessageId, Incoming> incoming_;
  std::array<int64_t, kNumCommClasses> unposted_bytes_ = {};  // that are kept here
  std::map<MessageId, Incoming>::iterator current_;           // REQUIRES: frame_left_ > 0
  int64_t frame_left_ = 0;
};

}  // namespace switchyard::comm
