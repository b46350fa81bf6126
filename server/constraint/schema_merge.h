// Schemas that must hold together, as one.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace switchyard::server {

// Keeps the order of properties, which is that of the output.
using SchemaJson = nlohmann::ordered_json;

// Whether the keyword says nothing about which values are valid (title, default, $defs …).
bool IsAnnotation(absl::string_view keyword);

// A schema that takes what both take.  Both are objects or booleans.  Parts that need it get an allOf, which is merged
// when it is their turn.  InvalidArgument: "both have \"pattern\"", of keywords that cannot be joined.
absl::StatusOr<SchemaJson> MergeSchemas(const SchemaJson& a, const SchemaJson& b);

// Roughly the bytes, as JSON, of what MergeSchemas makes, or more: each property that only one of them names has a copy
// of the other's additionalProperties.
int64_t BytesWhenMerged(const SchemaJson& a, const SchemaJson& b);

// InvalidArgument: `required` is a list with other than texts, or past kMaxSchemaKeys or kMaxSchemaKeyBytes.
absl::Status CheckRequired(const SchemaJson& required);

// Whether no value is valid for both, as far as types, constants and required properties tell.  Reduces *comparisons by
// those that it made; below 0 they were too many, and the answer is false.
bool AreDisjoint(const SchemaJson& a, const SchemaJson& b, int64_t* comparisons);

// The types that a schema takes, of: null boolean integer number string array object.  A schema without "type" whose
// keywords are about one type is read as being of that type.  nullopt: all.
std::optional<std::vector<std::string>> TypesOf(const SchemaJson& schema);

// Whether an instance of `enum` or `const` is of the type, as JSON Schema has it (1.0 is an integer).
bool HasType(const SchemaJson& value, absl::string_view type);

}  // namespace switchyard::server
