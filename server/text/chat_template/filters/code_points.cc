#include "server/text/chat_template/filters/code_points.h"

#include <string.h>

#include "absl/container/flat_hash_set.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::jinja {
namespace {

constexpr int32_t kEscapedByte = 0xDC00;  // Python's surrogateescape range starts at U+DC80
constexpr int32_t kSigma = 0x3A3, kFinalSigma = 0x3C2, kSharpS = 0xDF;

bool IsCased(int32_t c) { return IsUpper(c) || IsLower(c) || text::IsTitlecase(c); }

// Appends the character; an invalid byte as it was.
void AppendCodePoint(int32_t c, std::string* out) {
  if (c >= kEscapedByte + 0x80 && c <= kEscapedByte + 0xFF) {
    out->push_back(static_cast<char>(c - kEscapedByte));
  } else {
    AppendUtf8(c, out);
  }
}

// Appends `mapped`, or `sharp_s` if the character c is ß.
void AppendMapped(int32_t c, char32_t mapped, absl::string_view sharp_s, std::string* out) {
  if (c != kSharpS) return AppendCodePoint(static_cast<int32_t>(mapped), out);
  out->append(sharp_s.data(), sharp_s.size());
}

void AppendTitle(int32_t c, std::string* out) { AppendMapped(c, text::ToTitlecase(c), "Ss", out); }

// Appends the lower case of `character`, a part of `text`; a sigma that ends a word becomes the final form.
void AppendLower(absl::string_view text, int32_t c, absl::string_view character, std::string* out) {
  const auto pos = static_cast<size_t>(character.data() - text.data());
  const size_t end = pos + character.size();
  const bool ends_word = end >= text.size() || !IsCased(DecodeAt(text, end).first);
  if (c == kSigma && pos > 0 && ends_word) {
    size_t before = pos - 1;
    while (before > 0 && (static_cast<uint8_t>(text[before]) & 0xC0) == 0x80) --before;
    if (IsCased(DecodeAt(text, before).first)) return AppendCodePoint(kFinalSigma, out);
  }
  AppendCodePoint(text::ToLowercase(c), out);
}

bool IsLineBreak(int32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Strips characters for which `drop` is true.
template <class Drop>
absl::string_view StripWhere(absl::string_view text, Side side, const Drop& drop) {
  if (side != Side::kRight) {
    while (!text.empty()) {
      const auto [c, len] = DecodeAt(text, 0);
      if (!drop(c)) break;
      text.remove_prefix(len);
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty()) {
      size_t last = text.size() - 1;
      while (last > 0 && text.size() - last < 4 && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
      if (last + DecodeAt(text, last).second != text.size()) last = text.size() - 1;  // stray continuation byte
      if (!drop(DecodeAt(text, last).first)) break;
      text.remove_suffix(text.size() - last);
    }
  }
  return text;
}

}  // namespace

std::pair<int32_t, size_t> DecodeAt(absl::string_view text, size_t pos) {
  const uint8_t lead = static_cast<uint8_t>(text[pos]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = ValidLength(text.substr(pos));
  if (length == 0) return {kEscapedByte + lead, 1};
  return {static_cast<int32_t>(DecodeUtf8(text, &pos)), length};
}

size_t CountCodePoints(absl::string_view text) {
  size_t count = 0;
  ForEachCodePoint(text, [&](int32_t, absl::string_view) { ++count; });
  return count;
}

std::vector<absl::string_view> SplitCodePoints(absl::string_view text) {
  std::vector<absl::string_view> out;
  ForEachCodePoint(text, [&](int32_t, absl::string_view character) { out.push_back(character); });
  return out;
}

bool IsSpace(int32_t c) { return text::IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsAlpha(int32_t c) { return text::IsLetter(c); }

bool IsDigit(int32_t c) {
  const bool superscript = c == 0xB2 || c == 0xB3 || c == 0xB9;  // digits to Python, though not decimal ones
  return text::IsDecimal(c) || superscript;
}

bool IsPrintable(int32_t c) { return c == ' ' || !(text::IsControlOrUnassigned(c) || text::IsSeparator(c)); }
bool IsUpper(int32_t c) { return text::IsUppercase(c); }
bool IsLower(int32_t c) { return text::IsLowercase(c); }

std::string ToUpper(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCodePoint(text, [&](int32_t c, absl::string_view) { AppendMapped(c, text::ToUppercase(c), "SS", &out); });
  return out;
}

std::string ToLower(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCodePoint(text, [&](int32_t c, absl::string_view character) { AppendLower(text, c, character, &out); });
  return out;
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  ForEachCodePoint(text, [&](int32_t c, absl::string_view character) {
    character.data() == text.data() ? AppendTitle(c, &out) : AppendLower(text, c, character, &out);
  });
  return out;
}

std::string TitleCase(absl::string_view text) {
  std::string out;
  bool in_word = false;
  ForEachCodePoint(text, [&](int32_t c, absl::string_view character) {
    in_word ? AppendLower(text, c, character, &out) : AppendTitle(c, &out);
    in_word = IsCased(c);
  });
  return out;
}

absl::string_view Strip(absl::string_view text, Side side) {
  return StripWhere(text, side, [](int32_t c) { return IsSpace(c); });
}

absl::string_view StripChars(absl::string_view text, absl::string_view chars, Side side) {
  absl::flat_hash_set<int32_t> set;  // linear in both texts
  ForEachCodePoint(chars, [&](int32_t c, absl::string_view) { set.insert(c); });
  return StripWhere(text, side, [&](int32_t c) { return set.contains(c); });
}

size_t FindText(absl::string_view text, absl::string_view needle, size_t from) {
  if (from > text.size()) return kNone;
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found == nullptr ? kNone : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<absl::string_view> out;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const auto [c, len] = DecodeAt(text, pos);
    size_t next = pos + len;
    if (IsLineBreak(c)) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      out.push_back(text.substr(start, (keep_ends ? next : pos) - start));
      start = next;
    }
    pos = next;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

}  // namespace switchyard::jinja
