// A JSON schema (drafts 4 to 2020-12) as a grammar.  Pure; bounded by the text's size and Grammar::kMaxStates.
//
// Whatever the grammar takes is valid under the schema; a keyword that cannot be held to is refused, with its path.
// The grammar may take less than the schema:
//  - properties come in the schema's order; others only if additionalProperties says so, or there are no `properties`;
//    keys of those have no escapes.  Space between parts and the digits of numbers are limited (json_rules.h).
//  - a schema without `type` whose keywords are about one type is of that type;
//  - beside patternProperties no other additional properties are made; behind prefixItems no others without `items`;
//  - oneOf needs branches that differ in type, constants or required properties;
//  - `pattern` beside minLength or maxLength must keep to them by itself, or repeat one class of letters.
// Refused: not, if, then, else, dependent…, contains, unevaluated…, uniqueItems of more than one item, references to
// other documents, formats of JSON Schema that RegexOfFormat does not know, and what regex.h refuses.  Formats that
// JSON Schema does not define, as pydantic's "path", are notes.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/grammar.h"

namespace switchyard::server {

inline constexpr size_t kMaxSchemaBytes = 256 << 10;
inline constexpr int kMaxSchemaDepth = 64;
inline constexpr int64_t kMaxSchemaKeys = 5'000;      // of all objects; and of one `required`
inline constexpr int64_t kMaxSchemaKeyBytes = 1'024;  // likewise

// The finished grammar.  InvalidArgument: "$.properties.a: "not" is not supported", or of another fault.
absl::StatusOr<std::unique_ptr<const grammar::Grammar>> GrammarOfSchema(absl::string_view schema);
// Any JSON object.
absl::StatusOr<std::unique_ptr<const grammar::Grammar>> GrammarOfAnyObject();

// A regex of the values of a `format`; empty: it is not known.
absl::string_view RegexOfFormat(absl::string_view format);
// Whether JSON Schema defines a `format` that RegexOfFormat does not know.
bool IsStandardFormat(absl::string_view format);

}  // namespace switchyard::server
