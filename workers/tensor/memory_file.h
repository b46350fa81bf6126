// Memory files (memfd): a host's memory that processes of one machine map, in huge pages where the kernel has them
// (MADV_COLLAPSE, Linux 6.1; small ones are read 7 % slower: tests/bench/README.md, `workers`).
//
// A process makes one, fills it, and seals it, so that nobody can change it; others of its user open it through that
// process (/proc/PID/fd), which needs no directory and leaves nothing behind.  The memory lives as long as anybody maps
// it or has it open.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard {

// Rounded up to whole huge pages.
int64_t WholeHugePages(int64_t bytes);

// A file of so many bytes, all zero.  Errors: the kernel's, in words.
absl::StatusOr<UniqueFd> MakeMemoryFile(int64_t bytes);
// The same file, to be read only.
absl::StatusOr<UniqueFd> ReopenToRead(int file);
// Nobody can change the file from here on.  Errors: the kernel's; it is mapped to be written.
absl::Status SealMemoryFile(int file);
// Opens, to be read only, what PathOfMemoryFile said in another process.  FailedPrecondition: it has another size, or
// can still be changed; the kernel's.  Does not block, whatever is there.
absl::StatusOr<UniqueFd> OpenMemoryFile(const std::string& path, int64_t bytes);
std::string PathOfMemoryFile(int file);

// The same for processes of one machine, bound to the same processors, that can open each other's files; empty: not
// known.
std::string MachineName();

// OK where a memory file can have huge pages here, be sealed, and be opened again.  Errors: what cannot, in words.
absl::Status CheckMemoryFiles();

// A part of a memory file, mapped from a huge page's boundary on.
class MemoryFileView {
 public:
  MemoryFileView() = default;
  // offset, bytes: of whole huge pages.  to_write: else it is read only.  Errors: the kernel's.
  static absl::StatusOr<MemoryFileView> Map(int file, int64_t offset, int64_t bytes, bool to_write);
  MemoryFileView(MemoryFileView&& other) noexcept { *this = std::move(other); }
  MemoryFileView& operator=(MemoryFileView&& other) noexcept;
  ~MemoryFileView();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Gives `bytes` from `offset` on, which nobody has written, huge pages of zeros, but small ones where there are none
  // to be had.  Returns the bytes in small ones.  Unimplemented: this kernel has no huge pages for memory files.
  // REQUIRES: mapped to be written; whole huge pages.
  absl::StatusOr<int64_t> FillWithHugePages(int64_t offset, int64_t bytes);

 private:
  char* room_ = nullptr;  // of addresses
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace switchyard
