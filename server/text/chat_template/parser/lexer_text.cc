#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/chat_template/parser/lexer.h"

namespace switchyard::jinja {
namespace {

bool IsDigitOf(char c, int base) {
  if (base == 16) return absl::ascii_isxdigit(static_cast<unsigned char>(c));
  return c >= '0' && c < '0' + std::min(base, 10);
}

// The end of a run of digits with single underscores between them; `pos` when there is none.
size_t DigitsEnd(absl::string_view text, size_t pos, int base) {
  size_t end = pos;
  while (end < text.size()) {
    const size_t digit = text[end] == '_' && end > pos ? end + 1 : end;
    if (digit >= text.size() || !IsDigitOf(text[digit], base)) break;
    end = digit + 1;
  }
  return end;
}

std::string WithoutUnderscores(absl::string_view text) {
  std::string out(text.data(), text.size());
  out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
  return out;
}

// The end of a float literal, or 0.
size_t FloatEnd(absl::string_view text) {
  size_t end = DigitsEnd(text, 0, 10);
  bool is_float = false;
  if (end < text.size() && text[end] == '.') {
    const size_t fraction = DigitsEnd(text, end + 1, 10);
    if (fraction == end + 1) return 0;
    end = fraction;
    is_float = true;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const size_t sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? 1 : 0;
    const size_t exponent = DigitsEnd(text, end + 1 + sign, 10);
    if (exponent > end + 1 + sign) {
      end = exponent;
      is_float = true;
    }
  }
  return is_float ? end : 0;
}

// Returns the character of a one-letter escape, itself or a control character.
int SimpleEscape(char c) {
  static constexpr absl::string_view kFrom = "\\'\"abfnrtv";
  static constexpr absl::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  const size_t i = kFrom.find(c);
  return i == absl::string_view::npos ? -1 : kTo[i];
}

// Resolves the escape that begins after the backslash at `pos`; returns where it ends.
absl::StatusOr<size_t> ResolveEscape(absl::string_view text, size_t pos, std::string* out) {
  const char c = text[pos];
  if (const int simple = SimpleEscape(c); simple >= 0) {
    out->push_back(static_cast<char>(simple));
    return pos + 1;
  }
  if (c == '\n') return pos + 1;
  if (c >= '0' && c <= '7') {
    size_t end = pos;
    int value = 0;
    while (end < text.size() && end < pos + 3 && text[end] >= '0' && text[end] <= '7')
      value = value * 8 + text[end++] - '0';
    AppendUtf8(static_cast<char32_t>(value), out);
    return end;
  }
  const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (num_digits > 0) {
    const absl::string_view digits = text.substr(pos + 1, num_digits);
    if (digits.size() < num_digits || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
      return absl::InvalidArgumentError("truncated \\x, \\u or \\U escape in a string");
    }
    uint32_t value = 0;
    (void)absl::SimpleHexAtoi(digits, &value);  // up to eight hexadecimal digits always fit
    if (value > 0x10FFFF) return absl::InvalidArgumentError("illegal character in a \\U escape");
    if (value >= 0xD800 && value <= 0xDFFF) return absl::InvalidArgumentError("lone surrogate in a string");
    AppendUtf8(static_cast<char32_t>(value), out);
    return pos + 1 + num_digits;
  }
  if (c == 'N') return absl::InvalidArgumentError("\\N{name} escapes are not supported");
  out->push_back('\\');
  return pos;
}

}  // namespace

std::string NormalizeNewlines(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out.push_back(text[i] == '\r' ? '\n' : text[i]);
  }
  return out;
}

NumberText ScanNumber(absl::string_view text, bool may_be_float) {
  if (const size_t end = may_be_float ? FloatEnd(text) : 0; end > 0) {
    return {.length = end, .digits = WithoutUnderscores(text.substr(0, end)), .base = 10, .is_float = true};
  }
  const char prefix = text.size() > 1 && text[0] == '0' ? absl::ascii_tolower(text[1]) : ' ';
  const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
  if (base != 10) {
    const size_t start = text.size() > 2 && text[2] == '_' ? 3 : 2;
    const size_t end = DigitsEnd(text, start, base);
    if (end > start)
      return {.length = end, .digits = WithoutUnderscores(text.substr(start, end - start)), .base = base};
  }
  // "007" is the integer 00 and then 7: a leading zero takes only zeros.
  const size_t end = std::max<size_t>(DigitsEnd(text, 0, text[0] == '0' ? 1 : 10), 1);
  return {.length = end, .digits = WithoutUnderscores(text.substr(0, end))};
}

absl::StatusOr<std::string> Unescape(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (text[pos] != '\\') {
      out.push_back(text[pos++]);
      continue;
    }
    if (pos + 1 >= text.size()) return absl::InvalidArgumentError("\\ at the end of a string");
    auto end = ResolveEscape(text, pos + 1, &out);
    if (!end.ok()) return end.status();
    pos = *end;
  }
  return out;
}

}  // namespace switchyard::jinja
