// The 64 bytes in front of every payload on a wire or in a mailbox: its sender and its call.  Checked before the
// payload is used.
//
// Plain data of fixed layout, native byte order (all supported hosts are little-endian).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/local/message.h"

namespace switchyard::comm {

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x31595753;  // "SWY1"

  uint32_t magic = kMagic;
  uint8_t op = 0;
  uint8_t comm_class = 0;
  uint16_t source = 0;  // rank in the whole group
  int64_t epoch = 0;
  uint64_t token = 0;
  int64_t sequence = 0;
  int64_t key_bytes = 0;
  int64_t payload_bytes = 0;
  uint32_t split = 0;
  uint16_t world = 0;
  int16_t root = -1;
  uint32_t tag = 0;
  uint32_t unused = 0;

  OpKey key() const {
    return {.op = static_cast<CommOp>(op),
            .comm_class = static_cast<CommClass>(comm_class),
            .sequence = sequence,
            .bytes = key_bytes,
            .root = root,
            .tag = tag};
  }
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// The longest frame: the receiver allocates what a header claims, so that is bounded.
inline constexpr int64_t kMaxPayloadBytes = int64_t{1} << 32;

FrameHeader MakeFrameHeader(const GroupId& group, const OpKey& key, uint32_t split, int64_t payload_bytes);

// Checks that rank `source` should have sent this header under `key`.  FailedPrecondition: the sender is no peer of
// this group (stranger, other epoch, token, world or rank).  Internal: a peer, but another op, sequence or size; names
// both calls.
absl::Status CheckFrameHeader(const FrameHeader& header, const GroupId& group, int source, const OpKey& key,
                              uint32_t split);

}  // namespace switchyard::comm
