#include "workers/comm/tcp/socket_receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "scheduler/base/await.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {

// Reads a frame's bytes into its message and stages the bytes after it.  Returns the bytes read; 0 = none now.
absl::StatusOr<int64_t> SocketReceiver::ReadOnce() {
  const absl::Span<char> room = table_.Room();
  iovec parts[2] = {{room.data(), room.size()}, {staged_ + num_staged_, kStagedBytes - num_staged_}};
  ASSIGN_OR_RETURN(const int64_t got, room.empty() ? stream_.Read(parts + 1, 1) : stream_.Read(parts, 2));
  more_ = static_cast<size_t>(got) == room.size() + parts[1].iov_len;
  const auto of_frame = std::min(static_cast<size_t>(got), room.size());
  table_.Received(static_cast<int64_t>(of_frame));
  num_staged_ += static_cast<size_t>(got) - of_frame;
  return got;
}

absl::Status SocketReceiver::TakeStaged(std::vector<MessageId>* grants) {
  size_t taken = 0;
  for (;;) {
    const absl::Span<char> room = table_.Room();
    const size_t left = num_staged_ - taken;
    if (!room.empty()) {
      const size_t bytes = std::min(room.size(), left);
      if (bytes == 0) break;
      std::memcpy(room.data(), staged_ + taken, bytes);
      table_.Received(static_cast<int64_t>(bytes));
      taken += bytes;
      continue;
    }
    RecordHeader header;
    if (left < sizeof(header)) break;
    std::memcpy(&header, staged_ + taken, sizeof(header));
    taken += sizeof(header);
    RETURN_IF_ERROR(CheckRecord(header));
    if (header.kind == RecordKind::kGrant) {
      grants->push_back(header.id());
    } else {
      RETURN_IF_ERROR(table_.Begin(header));
    }
  }
  num_staged_ -= taken;
  std::memmove(staged_, staged_ + taken, num_staged_);
  return absl::OkStatus();
}

absl::StatusOr<bool> SocketReceiver::Read(std::vector<MessageId>* grants) {
  for (int64_t read = 0; read < kTurnBytes;) {
    absl::MutexLock lock(&mu_);  // unlocked between two reads, so that callers can enter
    ASSIGN_OR_RETURN(const int64_t got, ReadOnce());
    RETURN_IF_ERROR(TakeStaged(grants));
    if (!more_) return false;
    read += got;
  }
  return true;
}

bool SocketReceiver::Post(const MessageId& id) {
  absl::MutexLock lock(&mu_);
  return table_.Post(id);
}

SocketEnd SocketReceiver::Await(const MessageId& id, absl::Time deadline, Message* message, int* elsewhere) {
  absl::MutexLock lock(&mu_);
  const auto finalized = [&] {
    mu_.AssertHeld();
    return table_.IsWhole(id) || end_ != SocketEnd::kDone || (elsewhere != nullptr && *elsewhere != ended_elsewhere_);
  };
  const bool in_time = AwaitUntil(&mu_, absl::Condition(&finalized), deadline);
  if (end_ == SocketEnd::kAborted) return end_;
  if (table_.IsWhole(id)) {
    if (message != nullptr) *message = table_.Take(id);
    return SocketEnd::kDone;
  }
  if (end_ != SocketEnd::kDone) return end_;
  if (!in_time) return SocketEnd::kLate;
  *elsewhere = ended_elsewhere_;
  return SocketEnd::kElsewhere;
}

SocketReceiveTable::Share SocketReceiver::Came(const MessageId& id) {
  absl::MutexLock lock(&mu_);
  return table_.Came(id);
}

std::optional<OpKey> SocketReceiver::Unclaimed() {
  absl::MutexLock lock(&mu_);
  return table_.Unclaimed();
}

void SocketReceiver::End(SocketEnd why) {
  absl::MutexLock lock(&mu_);
  end_ = std::max(end_, why);
}

void SocketReceiver::EndedElsewhere() {
  absl::MutexLock lock(&mu_);
  ++ended_elsewhere_;
}

}  // namespace switchyard::comm
