#include "workers/comm/tcp/socket_wire.h"

#include "absl/strings/str_cat.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {
namespace {

RecordHeader RecordOf(RecordKind kind, const MessageId& id) {
  RecordHeader header;
  header.kind = kind;
  header.comm_class = static_cast<uint8_t>(id.comm_class);
  header.one_way = id.one_way ? 1 : 0;
  header.split = id.split;
  header.sequence = id.sequence;
  return header;
}

}  // namespace

RecordHeader FrameRecord(const MessageId& id, int64_t bytes, int64_t message_bytes) {
  RecordHeader header = RecordOf(RecordKind::kFrame, id);
  header.bytes = static_cast<uint32_t>(bytes);
  header.message_bytes = message_bytes;
  return header;
}

RecordHeader GrantRecord(const MessageId& id) { return RecordOf(RecordKind::kGrant, id); }

absl::Status CheckRecord(const RecordHeader& header) {
  if (header.magic != RecordHeader::kMagic || header.comm_class >= kNumCommClasses || header.one_way > 1) {
    return absl::FailedPreconditionError("it is no record of this protocol");
  }
  if (header.kind == RecordKind::kGrant && header.bytes == 0 && header.message_bytes == 0) return absl::OkStatus();
  const bool fits = header.kind == RecordKind::kFrame && header.bytes > 0 && header.bytes <= kMostFrameBytes &&
                    header.message_bytes >= kFrameHeaderBytes &&
                    header.message_bytes <= kFrameHeaderBytes + kMaxPayloadBytes;
  if (fits) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a record of kind ", static_cast<int>(header.kind), " says ",
                                                    header.bytes, " bytes of a message of ", header.message_bytes,
                                                    "; frames have 1 to ", kMostFrameBytes));
}

}  // namespace switchyard::comm
