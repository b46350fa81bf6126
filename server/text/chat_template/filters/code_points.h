// Text functions by code points, as Python has them, on UTF-8 strings.
//
// Pure functions, thread-safe.  An invalid UTF-8 byte counts as one character and is kept.  Case mapping is one-to-one
// except for ß and the final sigma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard::jinja {

inline constexpr size_t kNone = absl::string_view::npos;  // no position in a text

// Returns the character at `pos` and its length in bytes (at least 1); for an invalid byte b (0xDC00 + b, 1), as in
// Python's surrogateescape.  REQUIRES: pos < text.size().
std::pair<int32_t, size_t> DecodeAt(absl::string_view text, size_t pos);

// Calls visit(character, its bytes) for each character of `text` from left to right.
template <class Visit>
void ForEachCodePoint(absl::string_view text, Visit visit) {
  for (size_t pos = 0; pos < text.size();) {
    const auto [c, length] = DecodeAt(text, pos);
    visit(c, text.substr(pos, length));
    pos += length;
  }
}

size_t CountCodePoints(absl::string_view text);
// Returns each character as a view into `text`.
std::vector<absl::string_view> SplitCodePoints(absl::string_view text);

// Python's str.isspace, isalpha, isdigit and so on, for one character.
bool IsSpace(int32_t c);
bool IsAlpha(int32_t c);
bool IsDigit(int32_t c);
bool IsPrintable(int32_t c);
bool IsUpper(int32_t c);
bool IsLower(int32_t c);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
// Python's str.capitalize: the first character in title case, the rest in lower case.
std::string Capitalize(absl::string_view text);
// Python's str.title: each run of letters capitalized.
std::string TitleCase(absl::string_view text);

enum class Side { kLeft, kRight, kBoth };
// Strip whitespace, or any of the characters in `chars`, from the given side.
absl::string_view Strip(absl::string_view text, Side side);
absl::string_view StripChars(absl::string_view text, absl::string_view chars, Side side);

// Returns the position of `needle` in `text` at or after byte `from`, or npos.  Linear in the text for any needle.
size_t FindText(absl::string_view text, absl::string_view needle, size_t from);

// Python's str.splitlines.
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);

}  // namespace switchyard::jinja
