// The messages that wait to be sent to one peer, a queue for each class, and the choice of the next bytes.
//
// Classes that have something to send take turns, a frame each; or, if they overtake, the first of them goes between
// two frames (kSendOrder), and an all-to-all waits for at most one frame of a sum.  Within a class messages go in the
// order in which they came.  A message that may not go yet, because the peer has not granted it and the credit without
// a grant is used up (socket_wire.h), does not delay later ones.  No I/O, no clock.  Thread-compatible.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "workers/comm/local/message.h"
#include "workers/comm/tcp/socket_traffic.h"
#include "workers/comm/tcp/socket_wire.h"

namespace switchyard::comm {

class SocketSendQueue {
 public:
  static constexpr int kMostParts = 2;

  // traffic: borrowed.  REQUIRES: kLeastFrameBytes <= framing.bytes <= kMostFrameBytes.
  SocketSendQueue(const SocketFraming& framing, SocketTraffic* traffic);

  // Queues a message.  REQUIRES: its FrameHeader is filled in, and the queue has no other of that id.
  void Push(const MessageId& id, Message message);
  // Queues a grant: this rank has launched the call that receives that message of the peer's.
  void PushGrant(const MessageId& id);
  // Records a grant of the peer's.  FailedPrecondition: it grants more than it may.
  absl::Status Granted(const MessageId& id);

  // The bytes to write next, in at most kMostParts parts; 0 = nothing may go now.  Returns the same until Wrote.
  int Next(iovec* parts);
  // The first `bytes` bytes of them have been written.
  void Wrote(int64_t bytes);
  // Whether Next would give something.
  bool HasMore() const;

  // Whether a part of the message has not been written.
  bool Holds(const MessageId& id) const;

 private:
  struct Item {
    MessageId id;
    Message message;
    int64_t bytes = 0;  // FrameHeader included
    int64_t sent = 0;
    bool granted = false;
  };
  using Queue = std::list<Item>;  // an item stays where it is while others come and go

  Queue& QueueOf(CommClass comm_class) { return queues_[static_cast<size_t>(comm_class)]; }
  int64_t FrameBytes(const Item& item) const;  // 0 = may not go now
  void BeginFrame();
  void BeginFrameOf(CommClass comm_class, Queue::iterator item, int64_t bytes);
  bool AnyCouldGo(size_t from_place) const;

  const SocketFraming framing_;
  SocketTraffic* const traffic_;
  std::array<Queue, kNumCommClasses> queues_;
  size_t first_place_ = 0;                       // in kSendOrder: the class that has the turn
  std::array<int64_t, kNumCommClasses> window_;  // bytes that may go without a grant
  std::map<MessageId, int64_t> ungranted_;       // bytes that were sent of messages without a grant
  std::set<MessageId> early_;                    // granted before they were pushed
  std::string grants_;                           // records that are to be sent

  // The frame under way: headers, and what is left of its bytes.
  std::string head_;
  size_t head_sent_ = 0;
  int64_t body_left_ = 0;
  int64_t body_bytes_ = 0;
  CommClass class_ = CommClass::kControl;
  Queue::iterator item_;  // REQUIRES: body_left_ > 0
};

}  // namespace switchyard::comm
