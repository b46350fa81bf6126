#include "workers/comm/tcp/socket_sender.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/await.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {

int64_t SocketSender::WriteOnce() {
  if (end_ != SocketEnd::kDone) return 0;
  iovec parts[SocketSendQueue::kMostParts];
  const int num_parts = queue_.Next(parts);
  // (The receiving direction reports that the connection is gone, after all bytes before.)
  const int64_t sent = num_parts == 0 ? 0 : stream_.Write(parts, num_parts);
  if (sent > 0) queue_.Wrote(sent);
  return sent;
}

bool SocketSender::Send(absl::Span<const MessageId> grants, const MessageId* id, Message message) {
  absl::MutexLock lock(&mu_);
  for (const MessageId& grant : grants) queue_.PushGrant(grant);
  if (id != nullptr) queue_.Push(*id, std::move(message));
  // A caller that sends one message does not send the rest of the queue.
  for (int64_t written = 0; written < kTurnBytes;) {
    const int64_t now = WriteOnce();
    if (now == 0) return false;
    written += now;
    if (id == nullptr || !queue_.Holds(*id)) break;
  }
  return queue_.HasMore();
}

bool SocketSender::Write() {
  for (int64_t written = 0; written < kTurnBytes;) {
    absl::MutexLock lock(&mu_);  // unlocked between two writes, so that callers can enter
    const int64_t now = WriteOnce();
    if (now == 0) return false;
    written += now;
  }
  return true;
}

absl::Status SocketSender::Granted(absl::Span<const MessageId> ids) {
  absl::MutexLock lock(&mu_);
  for (const MessageId& id : ids) RETURN_IF_ERROR(queue_.Granted(id));
  return absl::OkStatus();
}

SocketEnd SocketSender::AwaitSent(const MessageId& id, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto finalized = [&] {
    mu_.AssertHeld();
    return !queue_.Holds(id) || end_ != SocketEnd::kDone;
  };
  const bool in_time = AwaitUntil(&mu_, absl::Condition(&finalized), deadline);
  if (end_ == SocketEnd::kAborted) return end_;
  if (!queue_.Holds(id)) return SocketEnd::kDone;
  return in_time ? SocketEnd::kClosed : SocketEnd::kLate;
}

void SocketSender::End(SocketEnd why) {
  absl::MutexLock lock(&mu_);
  end_ = std::max(end_, why);
}

}  // namespace switchyard::comm
