// Little-endian integers and strings into and out of bytes, for small file formats.  A reader checks every length, so
// that no count in a file makes it allocate or read beyond the bytes.
//
// A string is an u32 length and its bytes.  Unaligned.  Errors are InvalidArgument and name the format, the byte, what
// was wanted and what was there.  Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

template <class Int>
void AppendInt(Int value, std::string* bytes) {
  const auto bits = static_cast<std::make_unsigned_t<Int>>(value);
  for (size_t i = 0; i < sizeof(Int); ++i) bytes->push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
}

inline void AppendString(absl::string_view text, std::string* bytes) {
  AppendInt(static_cast<uint32_t>(text.size()), bytes);
  bytes->append(text.data(), text.size());
}

// REQUIRES: sizeof(Int) bytes are there.
template <class Int>
Int LoadInt(const char* from) {
  std::make_unsigned_t<Int> bits = 0;
  for (size_t i = sizeof(Int); i > 0; --i)
    bits = static_cast<std::make_unsigned_t<Int>>((uint64_t{bits} << 8) | static_cast<uint8_t>(from[i - 1]));
  return static_cast<Int>(bits);
}

// Borrows the bytes.
class ByteReader {
 public:
  // `format` begins every message: "path profile".  Reads from `position` on, which is not beyond the bytes.
  ByteReader(absl::string_view bytes, absl::string_view format, size_t position = 0)
      : bytes_(bytes), format_(format), position_(position) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  absl::Status Error(size_t at, absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat(format_, ": byte ", at, ": ", problem));
  }

  // The bytes end too early.
  absl::Status Truncated(size_t at, absl::string_view problem) {
    truncated_ = true;
    return Error(at, absl::StrCat("truncated: ", problem));
  }
  bool truncated() const { return truncated_; }

  absl::StatusOr<absl::string_view> Take(uint64_t num_bytes, absl::string_view what) {
    if (num_bytes > left())
      return Truncated(position_, absl::StrCat(what, " wants ", num_bytes, " bytes, ", left(), " are left"));
    const absl::string_view taken = bytes_.substr(position_, num_bytes);
    position_ += num_bytes;
    return taken;
  }

  template <class Int>
  absl::StatusOr<Int> TakeInt(absl::string_view what) {
    ASSIGN_OR_RETURN(const absl::string_view taken, Take(sizeof(Int), what));
    return LoadInt<Int>(taken.data());
  }

  // An integer in [least, most].
  template <class Int>
  absl::StatusOr<Int> TakeIn(absl::string_view what, Int least, Int most) {
    const size_t at = position_;
    ASSIGN_OR_RETURN(const Int value, TakeInt<Int>(what));
    if (value < least || value > most)
      return Error(at, absl::StrCat(what, " is ", value, ", not in [", least, ", ", most, "]"));
    return value;
  }

  absl::StatusOr<std::string> TakeString(absl::string_view what, uint32_t max_length) {
    ASSIGN_OR_RETURN(const auto length, TakeIn<uint32_t>(absl::StrCat("length of ", what), 0, max_length));
    ASSIGN_OR_RETURN(const absl::string_view text, Take(length, what));
    return std::string(text);
  }

 private:
  absl::string_view bytes_;
  std::string format_;
  size_t position_;
  bool truncated_ = false;
};

}  // namespace switchyard
