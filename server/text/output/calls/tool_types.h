// What the tools of a request say about arguments: names, and the JSON types of each parameter.
//
// For formats that write values as bare text: 5 may be a number or a text.  Immutable and thread-safe after creation.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace switchyard::text {

// A set of JSON types; empty: unknown.
class ValueTypes {
 public:
  enum Type : uint8_t { kString = 1, kNumber = 2, kBoolean = 4, kNull = 8, kObject = 16, kArray = 32 };

  void Add(Type type) { bits_ |= type; }
  void Add(ValueTypes types) { bits_ |= types.bits_; }
  bool Has(Type type) const { return (bits_ & type) != 0; }
  bool unknown() const { return bits_ == 0; }
  bool only_text() const { return bits_ == kString; }

 private:
  uint8_t bits_ = 0;
};

class ToolTypes {
 public:
  ToolTypes() = default;
  // `tools`: OpenAI's list, [{"type": "function", "function": {"name", "parameters"}}]; what is not of this form, and
  // null, counts as no tool.
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  bool Knows(absl::string_view tool) const { return tools_.contains(tool); }
  ValueTypes TypesOf(absl::string_view tool, absl::string_view parameter) const;

 private:
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, ValueTypes>> tools_;
};

// A value that a model wrote as bare text, as JSON of one of `types`; as a string where it is none of them.  Of unknown
// type it is a string with `unknown_is_text`, else whatever JSON it is.
std::string JsonOfValue(absl::string_view text, ValueTypes types, bool unknown_is_text);

}  // namespace switchyard::text
