// Text as Python sees it: UTF-8 bytes inside, code points to the template.
//
// Pure functions, thread-safe.  A byte that is no valid UTF-8 counts as one character of its own and is kept as it is.
// Case mapping is one-to-one but for ß and the final sigma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard::jinja {

inline constexpr size_t kNone = absl::string_view::npos;  // no place in a text

// The character at `pos` and the bytes it takes (at least 1).  An invalid byte b is (0xDC00 + b, 1), as Python's
// surrogateescape has it.  REQUIRES: pos < text.size().
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
// Each character as a view into `text`.
std::vector<absl::string_view> SplitCodePoints(absl::string_view text);

// Python's str.isspace, isalpha, isdigit, isprintable of one character.
bool IsSpace(int32_t c);
bool IsAlpha(int32_t c);
bool IsDigit(int32_t c);
bool IsPrintable(int32_t c);
bool IsUpper(int32_t c);
bool IsLower(int32_t c);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
// First character in title case, the rest in lower case.
std::string Capitalize(absl::string_view text);
// Python's str.title: each run of letters capitalized.
std::string TitleCase(absl::string_view text);

enum class Side { kLeft, kRight, kBoth };
// Without whitespace at the given side; with `chars`, without any of its characters.
absl::string_view Strip(absl::string_view text, Side side);
absl::string_view StripChars(absl::string_view text, absl::string_view chars, Side side);

// Where `needle` is in `text` at or after byte `from`, or npos; linear in the text whatever the needle.
size_t FindText(absl::string_view text, absl::string_view needle, size_t from);

// Python's str.splitlines.
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);

}  // namespace switchyard::jinja
