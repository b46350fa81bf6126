// What goes over the connection between two ranks of a socket group: records, each a header of 32 bytes and, of a
// frame, the next bytes of its message behind it.
//
// A message is a FrameHeader and a payload (frame_header.h), cut into frames so that one of another class may overtake
// it between two.  Frames of one message come in order; those of several messages may take turns.  A grant goes the
// other way, once for every message: its receiver has launched the call that takes it, so there is room for all of it.
// Before that its sender may send kUngrantedBytes of it, and kWindowBytes of all such messages of one class: classes
// have credit of their own, and a message whose call has been launched is never behind one whose call has not.
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
// Of training: connections that all-to-alls and sums share by turns, or on which all-to-alls overtake sums.
inline constexpr SocketFraming kSharingFrames = {.bytes = 64 << 10};
inline constexpr SocketFraming kOvertakingFrames = {.bytes = 64 << 10, .overtakes = true};
// Of messages whose receiver has not launched their call yet; what may come of them at most, for each peer and class.
// They come in frames of kLeastFrameBytes or more, but for a message's last, so what a receiver holds is less than
// twice as much, and 4 KiB at least for each.
inline constexpr int64_t kUngrantedBytes = 512 << 10;
inline constexpr int64_t kWindowBytes = 2 << 20;
inline constexpr size_t kMostEarlyGrants = 1 << 16;  // calls that a receiver may be ahead of its sender

// Which message of those from one rank to another: there is at most one under it (Communicator::Exchange).
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
  uint32_t bytes = 0;  // of the message, behind this header; of a grant 0
  int64_t sequence = 0;
  int64_t message_bytes = 0;  // with its FrameHeader; of a grant 0

  MessageId id() const { return {static_cast<CommClass>(comm_class), one_way != 0, split, sequence}; }
};
static_assert(sizeof(RecordHeader) == 32);

RecordHeader FrameRecord(const MessageId& id, int64_t bytes, int64_t message_bytes);
RecordHeader GrantRecord(const MessageId& id);
// FailedPrecondition: no record of this protocol, or one with sizes that none has.
absl::Status CheckRecord(const RecordHeader& header);

}  // namespace switchyard::comm
