// The records that go over the connection between two ranks of a socket group: each is a header of 32 bytes and, for a
// frame, the next bytes of its message.
//
// A message is a FrameHeader and a payload (frame_header.h), cut into frames, so that a message of another class may
// overtake it between two of them.  Frames of one message come in order; those of several messages may take turns.  A
// grant goes the other way, once for every message: the receiver has launched the call that receives it, so there is
// memory for all of it.  Before that its sender may send kUngrantedBytes of it, and kWindowBytes of all such messages
// of one class.  As classes have credit of their own, a message of a launched call never waits for one of a call that
// is not launched.
// Plain data of fixed layout, native byte order.
#pragma once

#include <cstdint>
#include <tuple>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/core/op_key.h"

namespace switchyard::comm {

inline constexpr int64_t kMostFrameBytes = 256 << 10;
inline constexpr int64_t kLeastFrameBytes = 4 << 10;
// How a sender cuts messages and orders their frames; its receiver does not need to know.
struct SocketFraming {
  int64_t bytes = kMostFrameBytes;  // of a frame at most; at least kLeastFrameBytes
  bool overtakes = false;           // an earlier class goes first (kSendOrder); otherwise classes take turns
};
// For training: all-to-alls overtake sums on a connection.  (With kSharingFrames, of benchmarks, they take turns.)
inline constexpr SocketFraming kSharingFrames = {.bytes = 64 << 10};
inline constexpr SocketFraming kOvertakingFrames = {.bytes = 64 << 10, .overtakes = true};
// The most that a peer may send, in each class, of messages whose call the receiver has not launched.  All frames but a
// message's last have kLeastFrameBytes or more, so a receiver holds less than twice as much, and 4 KiB at least for
// each.
inline constexpr int64_t kUngrantedBytes = 512 << 10;
inline constexpr int64_t kWindowBytes = 2 << 20;
inline constexpr size_t kMostEarlyGrants = 1 << 16;  // by so many calls a receiver may be ahead of its sender

// Names a message from one rank to another: at most one has it at a time (Communicator::Exchange).
struct MessageId {
  CommClass comm_class = CommClass::kControl;
  bool one_way = false;
  uint32_t split = 0;
  int64_t sequence = 0;

  friend bool operator==(const MessageId& a, const MessageId& b) = default;
  friend bool operator<(const MessageId& a, const MessageId& b) {
    return std::tie(a.comm_class, a.one_way, a.split, a.sequence) <
           std::tie(b.comm_class, b.one_way, b.split, b.sequence);
  }
};
inline MessageId IdOf(const Communicator::Exchange& exchange) {
  return {exchange.key.comm_class, exchange.key.op == CommOp::kSend, exchange.split, exchange.key.sequence};
}

enum class RecordKind : uint8_t { kFrame = 1, kGrant = 2 };

struct RecordHeader {
  static constexpr uint32_t kMagic = 0x32595753;  // "SWY2"

  uint32_t magic = kMagic;
  RecordKind kind = RecordKind::kFrame;
  uint8_t comm_class = 0;
  uint8_t one_way = 0;
  uint8_t unused = 0;
  uint32_t split = 0;
  uint32_t bytes = 0;  // of the message, after this header; of a grant 0
  int64_t sequence = 0;
  int64_t message_bytes = 0;  // with its FrameHeader; of a grant 0

  MessageId id() const { return {static_cast<CommClass>(comm_class), one_way != 0, split, sequence}; }
};
static_assert(sizeof(RecordHeader) == 32);

RecordHeader FrameRecord(const MessageId& id, int64_t bytes, int64_t message_bytes);
RecordHeader GrantRecord(const MessageId& id);
// FailedPrecondition: not a record of this protocol, or one with impossible sizes.
absl::Status CheckRecord(const RecordHeader& header);

}  // namespace switchyard::comm
