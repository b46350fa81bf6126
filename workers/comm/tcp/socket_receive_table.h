// The messages that arrive from one peer, by id, and where their bytes go.
//
// A message whose call is launched here (Post) is received into its final memory.  The beginning of any other message
// is kept in a buffer that grows with it, and is copied once the call is launched.  A peer that sends more of these
// than it may (socket_wire.h), or in smaller pieces, breaks the protocol, so what is kept is bounded. No I/O, no clock.
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

  // Records that the call that receives the message is launched.  False: it was before, and nothing changes.
  bool Post(const MessageId& id);
  // A frame begins.  FailedPrecondition: it is of a message that is here whole, is longer than its message, says
  // another length than the frames before, or is more, or a smaller piece, than may come before the call's launch.
  // REQUIRES: CheckRecord; Room() is empty.
  absl::Status Begin(const RecordHeader& frame);
  // Where the rest of the frame goes; empty between frames.  Until the next call of anything else.
  absl::Span<char> Room();
  // The first so many bytes of Room have come.
  void Received(int64_t bytes);

  // Whether the message is here whole and its call is launched.
  bool IsWhole(const MessageId& id) const;
  // How much of it has come, of how much; 0 of 0: nothing.  Headers included.
  struct Share {
    int64_t got = 0, bytes = 0;
  };
  Share Came(const MessageId& id) const;
  // With its payload's length as its frames say it; what its FrameHeader says is to be checked.  REQUIRES: IsWhole.
  Message Take(const MessageId& id);
  // What the peer launched and this rank did not, if the head of such a message lies here.
  std::optional<OpKey> Unclaimed() const;

 private:
  struct Incoming {
    bool posted = false;
    int64_t bytes = 0;  // FrameHeader included; 0 = nothing has come
    int64_t got = 0;
    Message message = {};  // while not posted with room for little more than has come
  };
  // For so many bytes of the message; more if it is posted: all.
  void MakeRoom(Incoming* incoming, int64_t bytes);

  const std::shared_ptr<MessagePool> pool_;  // shared with the group's communicators and messages
  std::map<MessageId, Incoming> incoming_;
  std::array<int64_t, kNumCommClasses> unposted_bytes_ = {};  // that lie here
  std::map<MessageId, Incoming>::iterator current_;           // REQUIRES: frame_left_ > 0
  int64_t frame_left_ = 0;
};

}  // namespace switchyard::comm
