// Reads a file from its start, value by value, into one string that grows with what has been read.  Only gguf_header.cc
// uses it.
//
// One user at a time.  Errors: InvalidArgument that says where the file ends and what was being read; read's.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard {

class HeaderCursor {
 public:
  using ReadFn = absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)>;

  // Reads at most max_bytes of the file_bytes.  `read` outlives this.
  HeaderCursor(int64_t file_bytes, int64_t max_bytes, ReadFn read)
      : file_bytes_(file_bytes), max_bytes_(max_bytes), read_(read) {}

  int64_t at() const { return at_; }
  int64_t file_bytes() const { return file_bytes_; }

  // Moves on by `bytes`, which are in the file.  `what` names them in an error.
  absl::Status Skip(uint64_t bytes, absl::string_view what);
  // The next value of an integer type.
  template <class Int>
  absl::StatusOr<Int> Next(absl::string_view what) {
    if (absl::Status status = Skip(sizeof(Int), what); !status.ok()) return status;
    Int value;
    std::memcpy(&value, bytes_.data() + at_ - sizeof(Int), sizeof(Int));
    return value;
  }
  // The next text, which begins with its length.
  absl::StatusOr<std::string> NextString(int64_t max_bytes, absl::string_view what);
  // Moves on behind such a text.
  absl::Status SkipString(int64_t max_bytes, absl::string_view what);

  // What was read so far.  A view ends with the next call of another method.
  absl::string_view Since(int64_t begin) const {
    return absl::string_view(bytes_).substr(static_cast<size_t>(begin), static_cast<size_t>(at_ - begin));
  }
  // Hands over all that was read up to at().
  std::string Take() {
    bytes_.resize(static_cast<size_t>(at_));
    bytes_.shrink_to_fit();
    return std::move(bytes_);
  }

 private:
  absl::StatusOr<int64_t> NextLength(int64_t max_bytes, absl::string_view what);

  const int64_t file_bytes_;
  const int64_t max_bytes_;
  const ReadFn read_;
  std::string bytes_;  // of the file, from its start to at_ or beyond
  int64_t at_ = 0;
};

}  // namespace switchyard
