// Python's str() and repr() of values.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

// repr(float): the shortest digits that read back, "1e+16" from 16 digits on, always with a point or an exponent.
std::string FloatRepr(double value);
// repr(str): single quotes unless only those occur inside.
std::string StringRepr(absl::string_view text);

// str(value) and repr(value).  The only errors are the render's limits.
absl::StatusOr<std::string> Str(Runtime& runtime, const Value& value);
absl::StatusOr<std::string> Repr(Runtime& runtime, const Value& value);

}  // namespace switchyard::jinja
