// Jinja's filters and tests, by name, from fixed tables; thread-safe.
//
// Text is not marked as safe or escaped behind the template's back: chat templates are rendered without autoescape, so
// that `safe` does nothing and `escape` escapes once.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

using Filter = Method;
using Test = absl::StatusOr<bool> (*)(Runtime& runtime, const Value& input, const Args& args);

// nullptr: unknown.
Filter FindFilter(absl::string_view name);
Test FindTest(absl::string_view name);

// By name; error when it is unknown.
absl::StatusOr<Value> ApplyFilter(Runtime& runtime, absl::string_view name, const Value& input, const Args& args);
absl::StatusOr<bool> ApplyTest(Runtime& runtime, absl::string_view name, const Value& input, const Args& args);

// The parts of FindFilter's table, for filters.cc alone.
Filter FindTextFilter(absl::string_view name);
Filter FindValueFilter(absl::string_view name);
Filter FindListFilter(absl::string_view name);

// The value that an `attribute` argument names: "a.0.b" digs through items, digits index; None is the item itself.
absl::StatusOr<Value> DigAttribute(Runtime& runtime, const Value& item, const Value& attribute);
// Jinja compares text without regard to case unless asked to.
absl::StatusOr<Value> WithoutCase(Runtime& runtime, const Value& value);

}  // namespace switchyard::jinja
