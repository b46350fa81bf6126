// A message: payload bytes with room for the frame header in front, so that sending copies nothing.
//
// Owned by one holder at a time and passed by move, to a collective and from one.  Memory comes from a pool and returns
// there with the destructor, so a steady step allocates nothing.  Thread-compatible; a message may be destroyed on
// another thread than the one that made it, and after its communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "workers/tensor/tensor.h"

namespace switchyard::comm {

inline constexpr int64_t kFrameHeaderBytes = 64;  // keeps the payload aligned to 64 bytes

class MessagePool;

class Message {
 public:
  Message() = default;  // no payload, no memory: zero bytes
  Message(Message&& other) noexcept { *this = std::move(other); }
  Message& operator=(Message&& other) noexcept;
  ~Message();

  char* payload() const { return static_cast<char*>(buffer_.data()) + kFrameHeaderBytes; }  // aligned to 64 bytes
  int64_t bytes() const { return bytes_; }
  absl::Span<const char> span() const {
    return bytes_ == 0 ? absl::Span<const char>() : absl::MakeSpan(payload(), bytes_);
  }

  // For communicators: header and payload, and the number of payload bytes that have room.
  char* frame() const { return static_cast<char*>(buffer_.data()); }
  int64_t capacity() const { return buffer_.bytes() == 0 ? 0 : buffer_.bytes() - kFrameHeaderBytes; }
  // REQUIRES: bytes <= capacity().
  void SetBytes(int64_t bytes);

 private:
  friend class MessagePool;

  Buffer buffer_;
  int64_t bytes_ = 0;
  std::shared_ptr<MessagePool> pool_;  // shared by the communicator and every message of it
};

// Thread-safe.  Keeps at most `max_kept_bytes` of unused buffers.
class MessagePool : public std::enable_shared_from_this<MessagePool> {
 public:
  static std::shared_ptr<MessagePool> Create(int64_t max_kept_bytes = int64_t{256} << 20);

  // A message of `bytes` payload bytes, not initialised.
  Message Take(int64_t bytes);

 private:
  friend class Message;
  explicit MessagePool(int64_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) {}
  void Return(Buffer buffer);

  const int64_t max_kept_bytes_;
  absl::Mutex mu_;
  std::vector<Buffer> kept_ ABSL_GUARDED_BY(mu_);  // by rising size
  int64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace switchyard::comm
