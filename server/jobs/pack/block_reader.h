// A file of lines, read in blocks that end with a line, so that threads can share the lines out.
//
// Memory is one block, some 256 KiB or the longest line.  The descriptor is borrowed and read from its beginning with
// pread.  Thread-compatible.  Errors: InvalidArgument for a line that is too long and for a compressed file,
// FailedPrecondition "changed while it was read" where it is another one than at Create, DataLoss for disk errors.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

// Whole lines; the last one of a file may lack its newline.
struct LineBlock {
  std::string bytes;
  int64_t first_line = 1;
  int64_t first_byte = 0;  // of the file
};

class BlockReader {
 public:
  // `name` begins messages.
  static absl::StatusOr<BlockReader> Create(int fd, std::string name, int64_t max_line_bytes);

  int64_t file_bytes() const { return opened_.st_size; }
  // The next lines; none are left when it has no bytes.
  absl::StatusOr<LineBlock> Next();

 private:
  BlockReader(int fd, std::string name, int64_t max_line_bytes)
      : fd_(fd), name_(std::move(name)), max_line_bytes_(max_line_bytes) {}
  absl::Status ReadMore();
  absl::Status CheckUnchanged() const;

  int fd_;
  std::string name_;
  int64_t max_line_bytes_;
  struct stat opened_ = {};
  std::string waiting_;    // read, and not given yet
  int64_t at_ = 0;         // the byte behind it
  int64_t next_line_ = 1;  // the line that waiting_ begins with
};

// "NAME:LINE (byte BYTE): WHAT"; `byte`: where the line begins.
std::string AtLine(absl::string_view name, int64_t line, int64_t byte, absl::string_view what);

}  // namespace switchyard::server
