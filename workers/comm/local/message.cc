#include "workers/comm/local/message.h"

#include <algorithm>
#include <bit>
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

std::shared_ptr<MessagePool> MessagePool::Create(int64_t max_kept_bytes, int64_t window) {
  SY_CHECK_GE(window, 1);
  return std::shared_ptr<MessagePool>(new MessagePool(max_kept_bytes, window));
}

MessagePool::OfSize& MessagePool::SizeOf(int64_t buffer_bytes) {
  return sizes_[static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(buffer_bytes)))];
}

Message MessagePool::Take(int64_t bytes) {
  SY_CHECK_GE(bytes, 0);
  const int64_t size = BufferBytes(bytes);
  Message message;
  message.pool_ = shared_from_this();
  std::vector<Buffer> freed;  // behind the lock
  {
    const absl::MutexLock lock(&mu_);
    if (++taken_ > window_) EndWindow(&freed);
    OfSize& of_size = SizeOf(size);
    of_size.most = std::max(of_size.most, ++of_size.out);
    bytes_.out += size;
    bytes_.most_out = std::max(bytes_.most_out, bytes_.out);
    if (!of_size.kept.empty()) {
      message.buffer_ = std::move(of_size.kept.back());
      of_size.kept.pop_back();
      bytes_.kept -= size;
    }
  }
  if (message.buffer_.bytes() == 0) message.buffer_ = Buffer(size, Device::Cpu());
  message.bytes_ = bytes;
  return message;
}

void MessagePool::EndWindow(std::vector<Buffer>* freed) {
  taken_ = 1;
  for (OfSize& size : sizes_) {
    size.most_before = size.most;
    size.most = size.out;
    while (!size.kept.empty() && size.kept.size() + size.out > size.most_before) {
      bytes_.kept -= size.kept.back().bytes();
      freed->push_back(std::move(size.kept.back()));
      size.kept.pop_back();
    }
  }
}

PoolBytes MessagePool::bytes() const {
  const absl::MutexLock lock(&mu_);
  return bytes_;
}

void MessagePool::Return(Buffer buffer) {
  const int64_t bytes = buffer.bytes();
  if (bytes == 0) return;
  const absl::MutexLock lock(&mu_);
  OfSize& size = SizeOf(bytes);
  --size.out;  // out and kept together are no more than were out at once
  bytes_.out -= bytes;
  if (bytes_.kept + bytes > max_kept_bytes_) return;
  bytes_.kept += bytes;
  size.kept.push_back(std::move(buffer));
}

}  // namespace switchyard::comm
