// Converts JSON to a template's Values, and Values to text as Python's json.dumps does (the `tojson` filter).  JSON
// text is parsed elsewhere, by scheduler/base/text/strict_json.h.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

// Errors: nesting or size beyond the limits, an integer beyond 64 bits, binary data.
absl::StatusOr<Value> FromJson(Runtime& runtime, const nlohmann::ordered_json& json);

struct DumpOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ";  // with an indent the default is ","
  std::string key_separator = ": ";
};

// Error: a value that JSON has no form for (undefined, a generator, …).
absl::StatusOr<std::string> DumpJson(Runtime& runtime, const Value& value, const DumpOptions& options);

}  // namespace switchyard::jinja
