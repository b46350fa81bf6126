#include "workers/comm/core/frame_header.h"

#include "absl/strings/str_cat.h"

namespace switchyard::comm {

FrameHeader MakeFrameHeader(const GroupId& group, const OpKey& key, uint32_t split, int64_t payload_bytes) {
  FrameHeader header;
  header.op = static_cast<uint8_t>(key.op);
  header.comm_class = static_cast<uint8_t>(key.comm_class);
  header.source = static_cast<uint16_t>(group.rank);
  header.epoch = group.epoch;
  header.token = group.token;
  header.sequence = key.sequence;
  header.key_bytes = key.bytes;
  header.payload_bytes = payload_bytes;
  header.split = split;
  header.root = key.root;
  header.tag = key.tag;
  header.world = static_cast<uint16_t>(group.world);
  return header;
}

absl::Status CheckFrameHeader(const FrameHeader& header, const GroupId& group, int source, const OpKey& key,
                              uint32_t split) {
  if (header.magic != FrameHeader::kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat("what came on rank ", source, "'s connection is no frame of this protocol: a stranger"));
  }
  if (header.token != group.token) {
    return absl::FailedPreconditionError(
        absl::StrCat("what came on rank ", source, "'s connection has another group's token: a stranger"));
  }
  if (header.epoch != group.epoch || header.world != static_cast<uint16_t>(group.world) || header.source != source) {
    return absl::FailedPreconditionError(absl::StrCat("frame of rank ", header.source, " of ", header.world,
                                                      " in epoch ", header.epoch, ", expected rank ", source, " of ",
                                                      group.world, " in epoch ", group.epoch));
  }
  const OpKey theirs = header.key();
  if (!(theirs == key) || header.split != split) {
    return absl::InternalError(absl::StrCat("collectives differ: rank ", source, " launched ", theirs.ToString(),
                                            header.split == split ? "" : " (of another split)", " where rank ",
                                            group.rank, " launched ", key.ToString()));
  }
  const int64_t wanted = key.root >= 0 && key.root != source ? 0 : key.bytes;
  if (header.payload_bytes < 0 || header.payload_bytes > kMaxPayloadBytes ||
      (wanted != kAnyBytes && header.payload_bytes != wanted)) {
    return absl::InternalError(
        absl::StrCat("rank ", source, " sent ", header.payload_bytes, " bytes in ", key.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::comm
