// write(2) and pwrite(2) until all of it is written, signals or not.  Thread-safe as those are; blocks on the disk.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace switchyard {

// 0, or errno: then some of it may be there.
inline int WriteWhole(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

// The same from byte `at` on.
inline int WriteWholeAt(int fd, int64_t at, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(count));
    at += count;
  }
  return 0;
}

}  // namespace switchyard
