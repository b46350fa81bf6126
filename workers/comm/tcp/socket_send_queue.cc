#include "workers/comm/tcp/socket_send_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::comm {
namespace {

void Append(const RecordHeader& header, std::string* to) {
  to->append(reinterpret_cast<const char*>(&header), sizeof(header));
}

}  // namespace

SocketSendQueue::SocketSendQueue(const SocketFraming& framing, SocketTraffic* traffic)
    : framing_(framing), traffic_(traffic) {
  SY_CHECK_GE(framing.bytes, kLeastFrameBytes);
  SY_CHECK_LE(framing.bytes, kMostFrameBytes);
  window_.fill(kWindowBytes);
}

void SocketSendQueue::Push(const MessageId& id, Message message) {
  Item item{.id = id, .message = std::move(message)};
  item.bytes = kFrameHeaderBytes + item.message.bytes();
  item.granted = early_.erase(id) > 0;
  QueueOf(id.comm_class).push_back(std::move(item));
}

void SocketSendQueue::PushGrant(const MessageId& id) { Append(GrantRecord(id), &grants_); }

absl::Status SocketSendQueue::Granted(const MessageId& id) {
  bool known = false;
  const auto ungranted = ungranted_.find(id);
  if (ungranted != ungranted_.end()) {
    window_[static_cast<size_t>(id.comm_class)] += ungranted->second;
    ungranted_.erase(ungranted);
    known = true;
  }
  for (Item& item : QueueOf(id.comm_class)) {
    if (!(item.id == id)) continue;
    item.granted = true;
    return absl::OkStatus();
  }
  if (known) return absl::OkStatus();  // the whole message was sent
  if (early_.size() >= kMostEarlyGrants || !early_.insert(id).second) {
    return absl::FailedPreconditionError(absl::StrCat("it grants #", id.sequence, " of class ",
                                                      CommClassName(id.comm_class), ", ", early_.size(),
                                                      " calls ahead or not for the first time"));
  }
  return absl::OkStatus();
}

int64_t SocketSendQueue::FrameBytes(const Item& item) const {
  const int64_t bytes = std::min(item.bytes - item.sent, framing_.bytes);
  if (item.granted) return bytes;
  const auto ungranted = ungranted_.find(item.id);
  const int64_t used = ungranted == ungranted_.end() ? 0 : ungranted->second;
  const bool fits = used + bytes <= kUngrantedBytes && bytes <= window_[static_cast<size_t>(item.id.comm_class)];
  return fits ? bytes : 0;
}

bool SocketSendQueue::AnyCouldGo(size_t from_place) const {
  for (size_t place = from_place; place < kSendOrder.size(); ++place) {
    for (const Item& item : queues_[static_cast<size_t>(kSendOrder[place])]) {
      if (FrameBytes(item) > 0) return true;
    }
  }
  return false;
}

void SocketSendQueue::BeginFrame() {
  for (size_t i = 0; i < kSendOrder.size(); ++i) {
    const size_t place = (first_place_ + i) % kSendOrder.size();
    Queue& queue = QueueOf(kSendOrder[place]);
    for (auto item = queue.begin(); item != queue.end(); ++item) {
      const int64_t bytes = FrameBytes(*item);
      if (bytes == 0) continue;
      if (!framing_.overtakes) {
        first_place_ = place + 1;
      } else if (item->sent == 0 && AnyCouldGo(place + 1)) {
        ++traffic_->overtaken;
      }
      BeginFrameOf(kSendOrder[place], item, bytes);
      return;
    }
  }
}

void SocketSendQueue::BeginFrameOf(CommClass comm_class, Queue::iterator item, int64_t bytes) {
  class_ = comm_class;
  item_ = item;
  body_left_ = body_bytes_ = bytes;
  Append(FrameRecord(item->id, bytes, item->bytes), &head_);
  if (item->granted) return;
  ungranted_[item->id] += bytes;
  window_[static_cast<size_t>(comm_class)] -= bytes;
}

int SocketSendQueue::Next(iovec* parts) {
  if (head_sent_ == head_.size() && body_left_ == 0) {
    head_ = std::exchange(grants_, {});
    head_sent_ = 0;
    BeginFrame();
  }
  int num_parts = 0;
  if (head_sent_ < head_.size()) parts[num_parts++] = {head_.data() + head_sent_, head_.size() - head_sent_};
  if (body_left_ > 0) {
    parts[num_parts++] = {item_->message.frame() + item_->sent + (body_bytes_ - body_left_),
                          static_cast<size_t>(body_left_)};
  }
  return num_parts;
}

void SocketSendQueue::Wrote(int64_t bytes) {
  const int64_t of_head = std::min(bytes, static_cast<int64_t>(head_.size() - head_sent_));
  head_sent_ += static_cast<size_t>(of_head);
  if (body_left_ == 0) return;
  SY_CHECK_LE(bytes - of_head, body_left_);
  body_left_ -= bytes - of_head;
  if (body_left_ > 0) return;
  ++traffic_->frames[static_cast<size_t>(class_)];
  traffic_->bytes[static_cast<size_t>(class_)] += body_bytes_;
  item_->sent += body_bytes_;
  if (item_->sent == item_->bytes) QueueOf(class_).erase(item_);
}

bool SocketSendQueue::HasMore() const {
  return head_sent_ < head_.size() || body_left_ > 0 || !grants_.empty() || AnyCouldGo(0);
}

bool SocketSendQueue::Holds(const MessageId& id) const {
  const Queue& queue = queues_[static_cast<size_t>(id.comm_class)];
  return std::any_of(queue.begin(), queue.end(), [&](const Item& item) { return item.id == id; });
}

}  // namespace switchyard::comm
