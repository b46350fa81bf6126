#include "server/text/output/calls/tool_types.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "scheduler/base/text/strict_json.h"
#include "server/text/output/calls/json_scanner.h"

namespace switchyard::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 8;
constexpr int kMaxReferences = 256;  // that are followed; beyond, types are unknown

ValueTypes TypesOfName(absl::string_view name) {
  using Type = ValueTypes::Type;
  constexpr std::pair<absl::string_view, Type> kNames[] = {
      {"string", Type::kString}, {"integer", Type::kNumber}, {"number", Type::kNumber}, {"boolean", Type::kBoolean},
      {"null", Type::kNull},     {"object", Type::kObject},  {"array", Type::kArray}};
  ValueTypes types;
  for (const auto& [known, type] : kNames) {
    if (known == name) types.Add(type);
  }
  return types;
}

ValueTypes TypesOfValue(const OrderedJson& value) {
  return TypesOfName(value.is_number() ? "number" : value.type_name());
}

const OrderedJson* Member(const OrderedJson* object, const std::string& key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto member = object->find(key);
  return member == object->end() ? nullptr : &*member;
}

// What "#/$defs/Place" points to in `root`; null: nothing.
const OrderedJson* Target(const OrderedJson& root, absl::string_view reference) {
  if (!absl::ConsumePrefix(&reference, "#")) return nullptr;
  const OrderedJson* at = &root;
  while (absl::ConsumePrefix(&reference, "/") && at != nullptr) {
    const absl::string_view name = reference.substr(0, reference.find('/'));
    at = Member(at, std::string(name));
    reference.remove_prefix(name.size());
  }
  return at;
}

// Of JSON schemas within `root`: from type, enum, const, what they combine, and what they refer to.
class SchemaReader {
 public:
  // `refs`: references that may still be followed, here and elsewhere.
  SchemaReader(const OrderedJson* root, int* refs) : root_(root), refs_(refs) {}

  ValueTypes TypesOf(const OrderedJson& schema, int depth = 0) {
    ValueTypes types;
    if (!schema.is_object() || depth == kMaxSchemaDepth) return types;
    for (const auto& [key, value] : schema.items()) {
      if (key == "type" && value.is_string()) {
        types.Add(TypesOfName(value.get_ref<const std::string&>()));
      } else if (key == "type" && value.is_array()) {
        for (const OrderedJson& name : value) {
          if (name.is_string()) types.Add(TypesOfName(name.get_ref<const std::string&>()));
        }
      } else if (key == "const") {
        types.Add(TypesOfValue(value));
      } else if (key == "enum" && value.is_array()) {
        for (const OrderedJson& one : value) types.Add(TypesOfValue(one));
      } else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array()) {
        for (const OrderedJson& one : value) types.Add(TypesOf(one, depth + 1));
      } else if (key == "$ref" && value.is_string() && --*refs_ >= 0) {
        types.Add(TypesOfTarget(value.get_ref<const std::string&>(), depth + 1));
      } else if (key == "nullable" && value == true) {
        types.Add(ValueTypes::kNull);
      }
    }
    return types;
  }

 private:
  ValueTypes TypesOfTarget(absl::string_view reference, int depth) {
    const OrderedJson* const target = Target(*root_, reference);
    if (target == nullptr) return {};
    const std::pair<const OrderedJson*, int> key = {target, depth};
    if (const auto it = targets_.find(key); it != targets_.end()) return it->second;
    const ValueTypes types = TypesOf(*target, depth);
    targets_[key] = types;
    return types;
  }

  const OrderedJson* const root_;
  int* const refs_;
  // With the depth at which each was reached.  A long one is read once, not by each that refers to it.
  absl::flat_hash_map<std::pair<const OrderedJson*, int>, ValueTypes> targets_;
};

// Whether `text` is JSON, of one of the types.
bool IsOfTypes(absl::string_view text, ValueTypes types) {
  OrderedJson value;
  if (ReadJson(text, LenientJson(kMaxJsonDepth), &value).has_value()) return false;
  if (types.unknown()) return true;
  return (value.is_number() && types.Has(ValueTypes::kNumber)) ||
         (value.is_boolean() && types.Has(ValueTypes::kBoolean)) ||
         (value.is_object() && types.Has(ValueTypes::kObject)) || (value.is_array() && types.Has(ValueTypes::kArray));
}

}  // namespace

ToolTypes::ToolTypes(const OrderedJson& tools) {
  if (!tools.is_array()) return;
  int refs = kMaxReferences;
  for (const OrderedJson& tool : tools) {
    const OrderedJson* function = Member(&tool, "function");
    const OrderedJson* name = Member(function, "name");
    if (name == nullptr || !name->is_string()) continue;
    auto& parameters = tools_[name->get_ref<const std::string&>()];
    const OrderedJson* const root = Member(function, "parameters");
    const OrderedJson* const properties = Member(root, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    SchemaReader reader(root, &refs);
    for (const auto& [key, schema] : properties->items()) parameters[key] = reader.TypesOf(schema);
  }
}

ValueTypes ToolTypes::TypesOf(absl::string_view tool, absl::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return {};
  const auto types = found->second.find(parameter);
  return types == found->second.end() ? ValueTypes() : types->second;
}

std::string JsonOfValue(absl::string_view text, ValueTypes types, bool unknown_is_text) {
  if (types.only_text() || (types.unknown() && unknown_is_text)) return JsonString(text);
  const absl::string_view bare = absl::StripAsciiWhitespace(text);
  // Null where a string is not meant; and as Python writes these words.
  const bool is_null = absl::EqualsIgnoreCase(bare, "null") || bare == "None";
  if (is_null && (types.Has(ValueTypes::kNull) || !types.Has(ValueTypes::kString))) return "null";
  if (types.Has(ValueTypes::kBoolean)) {
    if (absl::EqualsIgnoreCase(bare, "true")) return "true";
    if (absl::EqualsIgnoreCase(bare, "false")) return "false";
  }
  // A text in quotes is JSON too, of unknown type.
  if (IsOfTypes(bare, types)) return std::string(bare);
  return JsonString(text);
}

}  // namespace switchyard::text
