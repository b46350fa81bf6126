// Reads pieces of a file from its disk into memory, several at a time and past the page cache (O_DIRECT), so that
// reading takes no memory but where the pieces go.
//
// By io_uring; by threads where the kernel, or a container's filter, forbids that.  A file system without O_DIRECT is
// read through the page cache.  One thread calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::moe {

// What places in the file, lengths and addresses must be multiples of.
inline constexpr int64_t kDirectAlignment = 4096;

struct DirectRead {
  int64_t offset = 0, bytes = 0;
  char* to = nullptr;
  uint64_t tag = 0;  // the caller's
};

enum class DirectMethod : uint8_t { kAny, kUring, kThreads };

class DirectReader {
 public:
  struct Finished {
    uint64_t tag = 0;
    absl::Status status;
  };

  // `fd` is of the file to read, open for reading; it may be closed afterwards.  name: for messages.  most: reads under
  // way at once, at least 1.  method: kUring and kThreads are for tests.  Errors: the file system's; Unavailable: no
  // io_uring.
  static absl::StatusOr<std::unique_ptr<DirectReader>> Open(int fd, std::string name, int most,
                                                            DirectMethod method = DirectMethod::kAny);
  // Waits for reads under way.
  virtual ~DirectReader() = default;

  // Does not wait for the disk.  REQUIRES: fewer than `most` are under way; aligned.
  virtual void Start(const DirectRead& read) = 0;
  // Blocks until one of them is over.  DataLoss: the file ends within the read, or the disk cannot read it; others: the
  // system's.  REQUIRES: one is under way.
  virtual Finished Await() = 0;
  virtual const char* method() const = 0;  // for logs
  bool past_page_cache() const { return direct_; }

 protected:
  bool direct_ = true;
};

}  // namespace switchyard::moe
