// Python's two ways to format text: "%d of %s" % args, and "{} of {name:>5}".format(...).
//
// Widths and precisions are bounded by the render's limits.  Attributes and items in a field ({user.name}, {0[key]})
// go through the same sandbox as the rest of the template.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

// text % arguments; a tuple is many arguments, a dict serves %(name)s.
absl::StatusOr<std::string> FormatPercent(Runtime& runtime, absl::string_view text, const Value& arguments);
// text.format(args).
absl::StatusOr<std::string> FormatBraces(Runtime& runtime, absl::string_view text, const Args& args);

}  // namespace switchyard::jinja
