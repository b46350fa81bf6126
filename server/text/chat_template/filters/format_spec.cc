#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/format.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

absl::StatusOr<std::string> Pad(Runtime& runtime, const FormatSpec& spec, char align, absl::string_view sign,
                                absl::string_view body) {
  const auto length = static_cast<int64_t>(CountCodePoints(sign) + CountCodePoints(body));
  if (spec.width <= length) return absl::StrCat(sign, body);
  const auto missing = static_cast<size_t>(spec.width - length);
  RETURN_IF_ERROR(runtime.Allocate(missing * spec.fill.size() + body.size()));
  RETURN_IF_ERROR(runtime.StepsForCharacters(missing));
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string before, after;
  for (size_t i = 0; i < left; ++i) before += spec.fill;
  for (size_t i = left; i < missing; ++i) after += spec.fill;
  return align == '=' ? absl::StrCat(sign, before, body) : absl::StrCat(before, sign, body, after);
}

std::string WithCommas(const std::string& digits) {
  const size_t point = std::min(digits.find_first_of(".e"), digits.size());
  std::string out = digits;
  for (size_t i = point; i > 3; i -= 3) out.insert(i - 3, ",");
  return out;
}

std::string IntDigits(uint64_t magnitude, const FormatSpec& spec) {
  char buffer[32];
  const char* format = spec.type == 'x' ? "%lx" : spec.type == 'X' ? "%lX" : spec.type == 'o' ? "%lo" : "%lu";
  if (spec.type == 'b') {
    std::string bits;
    do {
      bits.insert(bits.begin(), static_cast<char>('0' + magnitude % 2));
    } while (magnitude /= 2);
    return spec.alternate ? absl::StrCat("0b", bits) : bits;
  }
  snprintf(buffer, sizeof buffer, format, static_cast<unsigned long>(magnitude));
  const bool prefixed = spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o');
  return prefixed ? absl::StrCat("0", std::string(1, spec.type), buffer) : buffer;
}

std::string FloatDigits(double magnitude, const FormatSpec& spec) {
  if (spec.type == 0 && spec.precision < 0) return FloatRepr(magnitude);
  char buffer[512];
  const char type = spec.type == 0 || spec.type == '%' ? (spec.type == 0 ? 'g' : 'f') : spec.type;
  const char format[] = {'%', '.', '*', type, '\0'};
  snprintf(buffer, sizeof buffer, format, spec.precision < 0 ? 6 : spec.precision,
           spec.type == '%' ? magnitude * 100 : magnitude);
  return spec.type == '%' ? absl::StrCat(buffer, "%") : buffer;
}

}  // namespace

int64_t TakeNumber(absl::string_view* text) {
  int64_t value = 0;
  while (!text->empty() && absl::ascii_isdigit(static_cast<unsigned char>(text->front()))) {
    value = std::min<int64_t>(value * 10 + (text->front() - '0'), int64_t{1} << 40);
    text->remove_prefix(1);
  }
  return value;
}

bool TakeChar(absl::string_view* text, char c) {
  if (text->empty() || text->front() != c) return false;
  text->remove_prefix(1);
  return true;
}

absl::StatusOr<std::string> FormatNumber(Runtime& runtime, const Value& value, FormatSpec spec) {
  constexpr int kMaxPrecision = 100;
  if (spec.precision > kMaxPrecision) return Error("the precision of a number is at most ", kMaxPrecision);
  const bool as_int = value.IsIntegral() && absl::string_view("efgEFG%").find(spec.type) == kNone;
  const bool negative = value.IsIntegral() ? value.AsInt() < 0 : std::signbit(value.AsDouble());
  std::string digits;
  if (as_int) {
    const auto bits = static_cast<uint64_t>(value.AsInt());
    digits = IntDigits(negative ? ~bits + 1 : bits, spec);
  } else {
    digits = FloatDigits(std::abs(value.AsDouble()), spec);
  }
  if (spec.comma) digits = WithCommas(digits);
  const absl::string_view sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return Pad(runtime, spec, spec.align == 0 ? '>' : spec.align, sign, digits);
}

absl::StatusOr<std::string> FormatText(Runtime& runtime, std::string text, const FormatSpec& spec, char default_align) {
  if (spec.precision >= 0) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
    const auto characters = SplitCodePoints(text);
    if (characters.size() > static_cast<size_t>(spec.precision)) {
      const size_t end = static_cast<size_t>(characters[static_cast<size_t>(spec.precision)].data() - text.data());
      text.resize(end);
    }
  }
  return Pad(runtime, spec, spec.align == 0 ? default_align : spec.align, "", text);
}

absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view text) {
  FormatSpec spec;
  constexpr absl::string_view kAligns = "<>^=";
  if (!text.empty()) {
    const size_t len = DecodeAt(text, 0).second;
    if (len < text.size() && kAligns.find(text[len]) != kNone) {
      spec.fill = std::string(text.substr(0, len));
      spec.align = text[len];
      text.remove_prefix(len + 1);
    } else if (kAligns.find(text[0]) != kNone) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  for (char sign : {'+', '-', ' '}) {
    if (TakeChar(&text, sign)) spec.sign = sign;
  }
  spec.alternate = TakeChar(&text, '#');
  if (TakeChar(&text, '0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = TakeNumber(&text);
  spec.comma = TakeChar(&text, ',');
  if (TakeChar(&text, '.')) spec.precision = static_cast<int>(std::min<int64_t>(TakeNumber(&text), 1 << 20));
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) return Error("invalid format specifier");
  return spec;
}

}  // namespace switchyard::jinja
