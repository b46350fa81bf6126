// Python's two ways to format text: "%d of %s" % args, and "{} of {name:>5}".format(...).
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

// text % arguments; a tuple is many arguments, a dict serves %(name)s.
absl::StatusOr<std::string> FormatPercent(Runtime& runtime, absl::string_view text, const Value& arguments);
// text.format(args).
absl::StatusOr<std::string> FormatBraces(Runtime& runtime, absl::string_view text, const Args& args);

// One field of either, in format_spec.cc: its width, precision and kind.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=', 0 = by type
  char sign = '-';
  bool alternate = false, comma = false;
  int64_t width = 0;
  int precision = -1;
  char type = 0;
};

// "[[fill]align][sign][#][0][width][,][.precision][type]".
absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view text);
// REQUIRES: a number.
absl::StatusOr<std::string> FormatNumber(Runtime& runtime, const Value& value, FormatSpec spec);
absl::StatusOr<std::string> FormatText(Runtime& runtime, std::string text, const FormatSpec& spec, char default_align);

// Takes the digits at the beginning of *text, and a character if it stands there.
int64_t TakeNumber(absl::string_view* text);
bool TakeChar(absl::string_view* text, char c);

}  // namespace switchyard::jinja
