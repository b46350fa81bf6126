#include "workers/comm/tcp/socket_receive_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {

void SocketReceiveTable::MakeRoom(Incoming* incoming, int64_t bytes) {
  if (incoming->posted) bytes = incoming->bytes;
  if (incoming->message.capacity() + kFrameHeaderBytes >= bytes && incoming->message.capacity() > 0) return;
  // (The pool's buffers double, so bytes are copied few times.)
  Message room = pool_->Take(bytes - kFrameHeaderBytes);
  if (incoming->got > 0) std::memcpy(room.frame(), incoming->message.frame(), static_cast<size_t>(incoming->got));
  incoming->message = std::move(room);
}

bool SocketReceiveTable::Post(const MessageId& id) {
  Incoming& incoming = incoming_[id];
  if (incoming.posted) return false;
  incoming.posted = true;
  unposted_bytes_[static_cast<size_t>(id.comm_class)] -= incoming.got;
  if (incoming.bytes > 0) MakeRoom(&incoming, incoming.bytes);
  return true;
}

absl::Status SocketReceiveTable::Begin(const RecordHeader& frame) {
  SY_CHECK_EQ(frame_left_, 0);
  const MessageId id = frame.id();
  const auto [at, is_new] = incoming_.try_emplace(id);
  Incoming& incoming = at->second;
  const auto broken = [&](const char* what) {
    return absl::FailedPreconditionError(absl::StrCat("a frame of ", frame.bytes, " bytes of #", id.sequence,
                                                      " of class ", CommClassName(id.comm_class), " (", incoming.got,
                                                      " of ", frame.message_bytes, " bytes have come) ", what));
  };
  if (incoming.bytes != 0 && incoming.bytes != frame.message_bytes) return broken("says another length than before");
  if (frame.bytes > frame.message_bytes - incoming.got) return broken("is too long");
  if (!incoming.posted) {
    const int64_t unposted = unposted_bytes_[static_cast<size_t>(id.comm_class)] + frame.bytes;
    if (incoming.got + frame.bytes > kUngrantedBytes || unposted > kWindowBytes) {
      return broken("comes before it was granted");
    }
    if (frame.bytes < std::min(frame.message_bytes - incoming.got, kLeastFrameBytes)) {
      return broken("is a piece that nobody cuts");
    }
  }
  incoming.bytes = frame.message_bytes;
  MakeRoom(&incoming, incoming.got + frame.bytes);
  current_ = at;
  frame_left_ = frame.bytes;
  return absl::OkStatus();
}

absl::Span<char> SocketReceiveTable::Room() {
  if (frame_left_ == 0) return {};
  const Incoming& incoming = current_->second;
  return {incoming.message.frame() + incoming.got, static_cast<size_t>(frame_left_)};
}

void SocketReceiveTable::Received(int64_t bytes) {
  SY_CHECK_LE(bytes, frame_left_);
  if (bytes == 0) return;
  Incoming& incoming = current_->second;
  incoming.got += bytes;
  frame_left_ -= bytes;
  if (!incoming.posted) unposted_bytes_[static_cast<size_t>(current_->first.comm_class)] += bytes;
}

bool SocketReceiveTable::IsWhole(const MessageId& id) const {
  const auto at = incoming_.find(id);
  return at != incoming_.end() && at->second.posted && at->second.bytes > 0 && at->second.got == at->second.bytes;
}

SocketReceiveTable::Share SocketReceiveTable::Came(const MessageId& id) const {
  const auto at = incoming_.find(id);
  return at == incoming_.end() ? Share() : Share{at->second.got, at->second.bytes};
}

Message SocketReceiveTable::Take(const MessageId& id) {
  const auto at = incoming_.find(id);
  SY_CHECK(at != incoming_.end());
  Message message = std::move(at->second.message);
  message.SetBytes(at->second.bytes - kFrameHeaderBytes);
  incoming_.erase(at);
  return message;
}

std::optional<OpKey> SocketReceiveTable::Unclaimed() const {
  for (const auto& [id, incoming] : incoming_) {
    if (incoming.posted || incoming.got < kFrameHeaderBytes) continue;
    FrameHeader header;
    std::memcpy(&header, incoming.message.frame(), sizeof(header));
    return header.key();
  }
  return std::nullopt;
}

}  // namespace switchyard::comm
