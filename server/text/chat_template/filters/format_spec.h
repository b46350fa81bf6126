// One field of a format: its width, precision and kind, and values laid out by it.
//
// What both of Python's mini-languages boil down to (format.h).  Padding is counted against the render's limits.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=', 0 = by type
  char sign = '-';
  bool alternate = false, comma = false;
  int64_t width = 0;
  int precision = -1;
  char type = 0;
};

inline constexpr int kMaxNumberPrecision = 100;

// "[[fill]align][sign][#][0][width][,][.precision][type]".
absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view text);
// REQUIRES: a number; precision at most kMaxNumberPrecision.
absl::StatusOr<std::string> FormatNumber(Runtime& runtime, const Value& value, FormatSpec spec);
absl::StatusOr<std::string> FormatText(Runtime& runtime, std::string text, const FormatSpec& spec, char default_align);

// Takes the digits at the beginning of *text, and a character if it stands there.
int64_t TakeNumber(absl::string_view* text);
bool TakeChar(absl::string_view* text, char c);

}  // namespace switchyard::jinja
