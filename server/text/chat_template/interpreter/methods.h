// The methods of str, list, tuple and dict that a template may call: a fixed list, nothing else is reachable.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

enum class MethodKind {
  kAbsent,
  kCallable,
  kMutating,     // exists in Python, forbidden by Jinja's immutable sandbox
  kUnsupported,  // exists in Python, not here
};

MethodKind FindMethod(const Value& self, absl::string_view name);
// REQUIRES: FindMethod(self, name) == kCallable.
absl::StatusOr<Value> CallMethod(Runtime& runtime, const Value& self, absl::string_view name, const Args& args);

// The parts of the table, for methods.cc alone.
using Method = absl::StatusOr<Value> (*)(Runtime& runtime, const Value& self, const Args& args);
Method FindStringMethod(absl::string_view name);    // nullptr: none
Method FindSequenceMethod(absl::string_view name);  // list and tuple
Method FindDictMethod(absl::string_view name);

}  // namespace switchyard::jinja
