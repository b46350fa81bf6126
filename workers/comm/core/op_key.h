// The identity of a collective, on which ranks must agree: for the ledger, the frame header and error messages.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::comm {

// Independent lanes: each has its own sequence numbers.
enum class CommClass : uint8_t {
  kAllToAll,
  kAllReduce,  // of gradients, beside backward
  kControl,
  kLayerSum,  // a layer's own sums and gathers: of its shards, copies and slices
};
inline constexpr int kNumCommClasses = 4;

enum class CommOp : uint8_t {
  kAllToAllV,
  kAllGather,
  kAllReduceSum,
  kBroadcast = 4,  // (frames carry these numbers)
  kBarrier,
  kSend,   // one way; the receiver's call has the same key
  kHello,  // the handshake of a new group
  kAllToAllSized,
  kFence,  // no collective: a deadline for what the stream holds
  kAllGatherSized,
  kSendView,  // of the root's view; the receiver's call has the same key
};
inline constexpr int kNumCommOps = 12;

const char* CommClassName(CommClass comm_class);  // "all_to_all"
const char* CommOpName(CommOp op);                // "all_to_all_v"

inline constexpr int64_t kAnyBytes = -1;

struct OpKey {
  CommOp op = CommOp::kBarrier;
  CommClass comm_class = CommClass::kControl;
  int64_t sequence = 0;       // in its class, from 0 (one-way ops: per peer and direction)
  int64_t bytes = kAnyBytes;  // of each message; kAnyBytes: every rank its own
  int16_t root = -1;          // of a broadcast or a view: the rank that sends
  uint32_t tag = 0;           // what the call is for (call_tag.h)

  std::string ToString() const;  // "all_gather #17 of class all_to_all (64 bytes)"
  bool operator==(const OpKey& other) const = default;
};

// One rank's place in a group; frames of another group are refused.
struct GroupId {
  int64_t epoch = 0;
  uint64_t token = 0;  // derived from the group's secret, and public (group_secret.h): tells groups apart
  int rank = 0;
  int world = 1;
};

}  // namespace switchyard::comm
