// Python's two ways of formatting text: "%d of %s" % args, and "{} of {name:>5}".format(...).
//
// Widths and precisions are bounded by the render's limits.  Attributes and items in a field ({user.name}, {0[key]})
// go through the same sandbox as the rest of the template.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

// text % arguments: a tuple holds several arguments, a dict the values of %(name)s.
absl::StatusOr<std::string> FormatPercent(Runtime& runtime, absl::string_view text, const Value& arguments);
// text.format(args).
absl::StatusOr<std::string> FormatBraces(Runtime& runtime, absl::string_view text, const Args& args);

// The width, precision and kind of a field of either (format_spec.cc).
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=', 0 = by type
  char sign = '-';
  bool alternate = false, comma = false;
  int64_t width = 0;
  int precision = -1;
  char type = 0;
};

// Parses "[[fill]align][sign][#][0][width][,][.precision][type]".
absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view text);
// REQUIRES: `value` is a number.
absl::StatusOr<std::string> FormatNumber(Runtime& runtime, const Value& value, FormatSpec spec);
absl::StatusOr<std::string> FormatText(Runtime& runtime, std::string text, const FormatSpec& spec, char default_align);

// Remove the digits, or the character `c`, from the beginning of *text.
int64_t TakeNumber(absl::string_view* text);
bool TakeChar(absl::string_view* text, char c);

}  // namespace switchyard::jinja
