// The lexer's pure parts: newlines, numbers and string escapes, as Jinja2 (that is, Python) reads them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jinja {

// "\r\n" and "\r" become "\n".
std::string NormalizeNewlines(absl::string_view text);

struct NumberText {
  size_t length = 0;   // in the source
  std::string digits;  // without underscores and base prefix
  int base = 10;
  bool is_float = false;
};

// The number that `text` begins with.  REQUIRES: text[0] is a digit.
NumberText ScanNumber(absl::string_view text, bool may_be_float);

// A string literal's content with its escapes resolved; an unknown escape stays as it is.
absl::StatusOr<std::string> Unescape(absl::string_view text);

}  // namespace switchyard::jinja
