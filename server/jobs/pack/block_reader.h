// Reads a file in blocks of whole lines, which threads can process in parallel.
//
// Memory is one block, some 256 KiB or the longest line.  The descriptor is borrowed and read from its beginning with
// pread.  Thread-compatible.  Errors: InvalidArgument for a line that is too long and for a compressed file,
// FailedPrecondition "changed while it was read" if the file is not as it was at Create, DataLoss for disk errors.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

inline constexpr int64_t kMaxLineBytes = 16 << 20;  // of training text

// Whole lines; a file's last line may lack its newline.
struct LineBlock {
  std::string bytes;
  int64_t first_line = 1;
  int64_t first_byte = 0;  // of the file
};

class BlockReader {
 public:
  // `name`: the file's name in messages.
  static absl::StatusOr<BlockReader> Create(int fd, std::string name, int64_t max_line_bytes);

  int64_t file_bytes() const { return opened_.st_size; }
  // Returns the next block; an empty one at the end of the file.
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
  std::string waiting_;    // read but not returned yet
  int64_t at_ = 0;         // offset of the byte after waiting_
  int64_t next_line_ = 1;  // number of waiting_'s first line
};

// Calls `visit` for each line that is not blank, without its newline and a carriage return before it; a byte order mark
// at the beginning of the file is no part of a line.  Ends with the first error, of `visit` or of a line that is too
// long: it gets the line's place (AtLine) and a reason, and ErrorInfo metadata file, line and byte.  Cancelled stays as
// it is.
absl::Status VisitLines(const std::string& name, const LineBlock& block, int64_t max_line_bytes,
                        absl::FunctionRef<absl::Status(absl::string_view)> visit);

absl::Status NoDocumentsError(const std::string& name);

// Returns "NAME:LINE (byte BYTE): WHAT".  `byte`: where the line begins.
std::string AtLine(absl::string_view name, int64_t line, int64_t byte, absl::string_view what);

}  // namespace switchyard::server
