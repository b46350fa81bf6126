// Tables of Jinja's filters and tests, looked up by name; thread-safe.
//
// Chat templates are rendered without autoescape, so text is not marked as safe: `safe` does nothing, and `escape`
// escapes once.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

using Filter = Method;
using Test = absl::StatusOr<bool> (*)(Runtime& runtime, const Value& input, const Args& args);

// Return nullptr for an unknown name.
Filter FindFilter(absl::string_view name);
Test FindTest(absl::string_view name);

// Apply a filter or test by name; an unknown name is an error.
absl::StatusOr<Value> ApplyFilter(Runtime& runtime, absl::string_view name, const Value& input, const Args& args);
absl::StatusOr<bool> ApplyTest(Runtime& runtime, absl::string_view name, const Value& input, const Args& args);

// Parts of FindFilter's table, for filters.cc only.
Filter FindTextFilter(absl::string_view name);
Filter FindValueFilter(absl::string_view name);
Filter FindListFilter(absl::string_view name);

// Returns the value that an `attribute` argument names: "a.0.b" looks up items one after the other, digits index lists;
// None gives the item itself.
absl::StatusOr<Value> DigAttribute(Runtime& runtime, const Value& item, const Value& attribute);
// Lowers a text for comparison, since Jinja ignores case unless asked not to; returns other values unchanged.
absl::StatusOr<Value> WithoutCase(Runtime& runtime, const Value& value);

}  // namespace switchyard::jinja
