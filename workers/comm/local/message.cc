#include "workers/comm/local/message.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::comm {
namespace {

// Sizes are rounded up to a power of two, so that messages of different sizes can use the same buffers.
constexpr int64_t kSmallest = 4096;

int64_t BufferBytes(int64_t bytes) {
  int64_t size = kSmallest;
  while (size < bytes + kFrameHeaderBytes) size *= 2;
  return size;
}

}  // namespace

Message& Message::operator=(Message&& other) noexcept {
  std::swap(buffer_, other.buffer_);
  std::swap(bytes_, other.bytes_);
  std::swap(pool_, other.pool_);
  return *this;
}

Message::~Message() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

void Message::SetBytes(int64_t bytes) {
  SY_CHECK_GE(bytes, 0);
  SY_CHECK_LE(bytes, capacity());
  bytes_ = bytes;
}

std::shared_ptr<MessagePool> MessagePool::Create(int64_t max_kept_bytes) {
  return std::shared_ptr<MessagePool>(new MessagePool(max_kept_bytes));
}

Message MessagePool::Take(int64_t bytes) {
  SY_CHECK_GE(bytes, 0);
  const int64_t size = BufferBytes(bytes);
  Message message;
  message.pool_ = shared_from_this();
  {
    absl::MutexLock lock(&mu_);
    const auto it = std::lower_bound(kept_.begin(), kept_.end(), size,
                                     [](const Buffer& buffer, int64_t wanted) { return buffer.bytes() < wanted; });
    if (it != kept_.end() && it->bytes() == size) {
      message.buffer_ = std::move(*it);
      kept_.erase(it);
      kept_bytes_ -= size;
    }
  }
  if (message.buffer_.bytes() == 0) message.buffer_ = Buffer(size, Device::Cpu());
  message.bytes_ = bytes;
  return message;
}

void MessagePool::Return(Buffer buffer) {
  if (buffer.bytes() == 0) return;
  absl::MutexLock lock(&mu_);
  if (kept_bytes_ + buffer.bytes() > max_kept_bytes_) return;
  kept_bytes_ += buffer.bytes();
  const auto it = std::lower_bound(kept_.begin(), kept_.end(), buffer.bytes(),
                                   [](const Buffer& kept, int64_t bytes) { return kept.bytes() < bytes; });
  kept_.insert(it, std::move(buffer));
}

}  // namespace switchyard::comm
