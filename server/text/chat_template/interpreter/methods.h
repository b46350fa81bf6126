// The methods of str, list, tuple and dict that a template may call: a fixed list.
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

// Finds a method of str, for methods.cc only; nullptr if there is none.
Method FindStringMethod(absl::string_view name);

}  // namespace switchyard::jinja
