// A message: payload bytes with room for the frame header in front, so that sending copies nothing.
//
// Owned by one holder at a time and passed by move, to a collective and from one.  Memory comes from a pool and returns
// there with the destructor, so a steady step allocates nothing.  Thread-compatible; a message may be destroyed on
// another thread than the one that made it, and after its communicator.
#pragma once

#include <array>
#include <cstddef>
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

// What a pool has: bytes of buffers, headers and the rounding up of sizes to powers of two included.
struct PoolBytes {
  int64_t out = 0;       // in messages
  int64_t kept = 0;      // unused
  int64_t most_out = 0;  // in messages at once, ever
};

// Thread-safe.  Unused buffers are kept, of each size no more than what of it was in messages at once lately, and at
// most `max_kept_bytes` in all.  Lately: in this window or the one before, of `window` messages taken each.
class MessagePool : public std::enable_shared_from_this<MessagePool> {
 public:
  // The default window is some steps of a large group, so that a steady step allocates nothing.
  static std::shared_ptr<MessagePool> Create(int64_t max_kept_bytes = int64_t{256} << 20, int64_t window = 1 << 16);

  // A message of `bytes` payload bytes, not initialised.
  Message Take(int64_t bytes);
  PoolBytes bytes() const;

 private:
  friend class Message;
  struct OfSize {
    std::vector<Buffer> kept;
    size_t out = 0, most = 0, most_before = 0;  // in messages: now; at once in this window, in the one before
  };
  MessagePool(int64_t max_kept_bytes, int64_t window) : max_kept_bytes_(max_kept_bytes), window_(window) {}
  void Return(Buffer buffer);
  OfSize& SizeOf(int64_t buffer_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves what is no longer needed to `freed`.
  void EndWindow(std::vector<Buffer>* freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t max_kept_bytes_, window_;
  mutable absl::Mutex mu_;
  std::array<OfSize, 64> sizes_ ABSL_GUARDED_BY(mu_);  // by the size's logarithm
  PoolBytes bytes_ ABSL_GUARDED_BY(mu_);
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;  // in this window
};

}  // namespace switchyard::comm
