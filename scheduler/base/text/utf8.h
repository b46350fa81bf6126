// UTF-8: decoding, validation and repair.  Stateless functions; thread-safe; no allocation but for what is appended.
//
// Everything past the doors of the program is valid UTF-8, so the fast decoder below does not check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace switchyard {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Length in bytes of the character that starts with `lead`.  REQUIRES: lead starts a character of valid UTF-8.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Decodes the character at *pos and moves *pos past it.  REQUIRES: text is valid UTF-8 and *pos starts a character.
char32_t DecodeUtf8(absl::string_view text, size_t* pos);

// Decodes the character that ends at `end`; sets *begin to where it starts.  REQUIRES: valid UTF-8, end > 0.
char32_t DecodeUtf8Before(absl::string_view text, size_t end, size_t* begin);

void AppendUtf8(char32_t code_point, std::string* out);

// Length of the character at the front of `text`, or 0 where that is no valid UTF-8.  REQUIRES: text is not empty.
size_t ValidLength(absl::string_view text);

// Offset of the first byte that is not part of valid UTF-8 (surrogates, overlong forms and values above U+10FFFF are
// not), or npos.
size_t FindInvalidUtf8(absl::string_view text);

// At most the first `most` bytes of valid UTF-8, not ending within a character.
absl::string_view CutText(absl::string_view text, size_t most);

// Bytes in, whole characters out: each maximal ill-formed part becomes one U+FFFD, as Rust's from_utf8_lossy and the
// WHATWG decoder do.  A character that is not complete yet waits (at most three bytes).
class LossyUtf8 {
 public:
  void Append(absl::string_view bytes, std::string* out);
  // Ends the text: a character that is still incomplete becomes one U+FFFD.
  void Flush(std::string* out);

 private:
  std::string waiting_;
};

}  // namespace switchyard
