#include "server/constraint/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr absl::string_view kAnnotations[] = {"$anchor",       "$comment",    "$defs",           "$id",
                                              "$schema",       "$vocabulary", "contentEncoding", "contentMediaType",
                                              "contentSchema", "default",     "definitions",     "deprecated",
                                              "description",   "example",     "examples",        "id",
                                              "readOnly",      "title",       "writeOnly"};

struct TypeOfKeyword {
  absl::string_view keyword, type;
};
constexpr TypeOfKeyword kTypes[] = {{"properties", "object"},
                                    {"required", "object"},
                                    {"additionalProperties", "object"},
                                    {"patternProperties", "object"},
                                    {"propertyNames", "object"},
                                    {"minProperties", "object"},
                                    {"maxProperties", "object"},
                                    {"items", "array"},
                                    {"prefixItems", "array"},
                                    {"additionalItems", "array"},
                                    {"minItems", "array"},
                                    {"maxItems", "array"},
                                    {"uniqueItems", "array"},
                                    {"pattern", "string"},
                                    {"format", "string"},
                                    {"minLength", "string"},
                                    {"maxLength", "string"},
                                    {"minimum", "number"},
                                    {"maximum", "number"},
                                    {"exclusiveMinimum", "number"},
                                    {"exclusiveMaximum", "number"},
                                    {"multipleOf", "number"}};

SchemaJson AllOf(SchemaJson a, SchemaJson b) {
  if (a == b || b == SchemaJson(true)) return a;
  if (a == SchemaJson(true)) return b;
  SchemaJson both = SchemaJson::object();
  both["allOf"] = SchemaJson::array({std::move(a), std::move(b)});
  return both;
}

// What `schema` says of a property that it does not name.
SchemaJson AdditionalOf(const SchemaJson& schema) {
  const auto it = schema.find("additionalProperties");
  return it == schema.end() ? SchemaJson(true) : *it;
}

absl::Status MergeProperties(const SchemaJson& a, const SchemaJson& b, SchemaJson* out) {
  const SchemaJson none = SchemaJson::object();
  const SchemaJson& of_a = a.contains("properties") ? a["properties"] : none;
  const SchemaJson& of_b = b.contains("properties") ? b["properties"] : none;
  if (!of_a.is_object() || !of_b.is_object()) return absl::InvalidArgumentError("\"properties\" must be an object");
  const bool patterns = a.contains("patternProperties") || b.contains("patternProperties");
  if (patterns && (a.contains("additionalProperties") || b.contains("additionalProperties")))
    return absl::InvalidArgumentError("\"patternProperties\" and \"additionalProperties\" cannot be joined");
  // An ordered object looks its names up one by one, so they are found here, and added without looking.
  absl::flat_hash_map<absl::string_view, const SchemaJson*> in_b;
  absl::flat_hash_set<absl::string_view> in_a;
  for (const auto& [name, schema] : of_b.get_ref<const SchemaJson::object_t&>()) in_b[name] = &schema;
  SchemaJson all = SchemaJson::object();
  auto& added = all.get_ref<SchemaJson::object_t&>();
  for (const auto& [name, schema] : of_a.get_ref<const SchemaJson::object_t&>()) {
    const auto it = in_b.find(name);
    added.push_back({name, AllOf(schema, it == in_b.end() ? AdditionalOf(b) : *it->second)});
    in_a.insert(name);
  }
  for (const auto& [name, schema] : of_b.get_ref<const SchemaJson::object_t&>()) {
    if (!in_a.contains(name)) added.push_back({name, AllOf(schema, AdditionalOf(a))});
  }
  if (!all.empty()) (*out)["properties"] = std::move(all);
  if (a.contains("additionalProperties") || b.contains("additionalProperties"))
    (*out)["additionalProperties"] = AllOf(AdditionalOf(a), AdditionalOf(b));
  return absl::OkStatus();
}

SchemaJson Common(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& value : a) {
    if (std::find(b.begin(), b.end(), value) != b.end()) both.push_back(value);
  }
  return both;
}

SchemaJson CommonTypes(const SchemaJson& a, const SchemaJson& b) {
  const auto list = [](const SchemaJson& types) { return types.is_array() ? types : SchemaJson::array({types}); };
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& x : list(a)) {
    for (const SchemaJson& y : list(b)) {
      if (x == y || (x == "integer" && y == "number")) {
        both.push_back(x);
      } else if (x == "number" && y == "integer") {
        both.push_back(y);
      }
    }
  }
  return both;
}

bool IsLowerBound(const std::string& key) {
  return key == "minimum" || key == "exclusiveMinimum" || key.rfind("min", 0) == 0;
}
bool IsUpperBound(const std::string& key) {
  return key == "maximum" || key == "exclusiveMaximum" || key.rfind("max", 0) == 0;
}

// Joins what both schemas say with `key`.
absl::Status MergeKeyword(const std::string& key, const SchemaJson& a, const SchemaJson& b, SchemaJson* out) {
  SchemaJson& to = (*out)[key];
  if (a == b) {
    to = a;
  } else if (key == "type") {
    to = CommonTypes(a, b);
  } else if (key == "enum" && a.is_array() && b.is_array()) {
    to = Common(a, b);
  } else if (key == "required" && a.is_array() && b.is_array()) {
    to = a;
    for (const SchemaJson& name : b) {
      if (std::find(to.begin(), to.end(), name) == to.end()) to.push_back(name);
    }
  } else if (key == "allOf" && a.is_array() && b.is_array()) {
    to = a;
    to.insert(to.end(), b.begin(), b.end());
  } else if ((key == "items" || key == "propertyNames") && !a.is_array() && !b.is_array()) {
    to = AllOf(a, b);
  } else if (a.is_number() && b.is_number() && IsLowerBound(key)) {
    to = std::max(a, b);
  } else if (a.is_number() && b.is_number() && IsUpperBound(key)) {
    to = std::min(a, b);
  } else if (key == "uniqueItems") {
    to = true;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("schemas that must hold together both have \"", key, "\""));
  }
  return absl::OkStatus();
}

// A combination or reference becomes a part of allOf, as two of them would not fit under one name.
SchemaJson Wrapped(const SchemaJson& schema) {
  SchemaJson out = SchemaJson::object(), parts = SchemaJson::array();
  for (const auto& [key, value] : schema.items()) {
    if (key == "$ref" || key == "anyOf" || key == "oneOf" || key == "const") {
      SchemaJson part = SchemaJson::object();
      if (key == "const") {
        out["enum"] = SchemaJson::array({value});
      } else {
        part[key] = value;
        parts.push_back(std::move(part));
      }
    } else if (!IsAnnotation(key)) {
      out[key] = value;
    }
  }
  if (schema.contains("const") && schema.contains("enum")) out["enum"] = Common(schema["enum"], out["enum"]);
  if (!parts.empty()) {
    if (out.contains("allOf") && out["allOf"].is_array())
      parts.insert(parts.end(), out["allOf"].begin(), out["allOf"].end());
    out["allOf"] = std::move(parts);
  }
  return out;
}

}  // namespace

bool IsAnnotation(absl::string_view keyword) {
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), keyword) != std::end(kAnnotations);
}

absl::StatusOr<SchemaJson> MergeSchemas(const SchemaJson& first, const SchemaJson& second) {
  if (first.is_boolean()) return first.get<bool>() ? second : first;
  if (second.is_boolean()) return second.get<bool>() ? first : second;
  const SchemaJson a = Wrapped(first), b = Wrapped(second);
  SchemaJson out = SchemaJson::object();
  RETURN_IF_ERROR(MergeProperties(a, b, &out));
  for (const auto& [key, value] : a.items()) {
    if (key == "properties" || key == "additionalProperties") continue;
    if (b.contains(key)) {
      RETURN_IF_ERROR(MergeKeyword(key, value, b[key], &out));
    } else {
      out[key] = value;
    }
  }
  for (const auto& [key, value] : b.items()) {
    if (key == "properties" || key == "additionalProperties" || a.contains(key)) continue;
    out[key] = value;
  }
  return out;
}

bool HasType(const SchemaJson& value, absl::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_number_integer() || (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
}

std::optional<std::vector<std::string>> TypesOf(const SchemaJson& schema) {
  std::vector<std::string> types;
  if (const auto it = schema.find("type"); it != schema.end()) {
    for (const SchemaJson& type : it->is_array() ? *it : SchemaJson::array({*it})) {
      if (type.is_string()) types.push_back(type.get<std::string>());
    }
    return types;
  }
  for (const TypeOfKeyword& known : kTypes) {
    if (!schema.contains(std::string(known.keyword))) continue;
    const std::string type(known.type);
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  if (types.empty()) return std::nullopt;
  return types;
}

bool AreDisjoint(const SchemaJson& a, const SchemaJson& b) {
  if (a.is_boolean() || b.is_boolean()) return a == SchemaJson(false) || b == SchemaJson(false);
  const auto values = [](const SchemaJson& schema) -> std::optional<SchemaJson> {
    if (schema.contains("const")) return SchemaJson::array({schema["const"]});
    if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
    return std::nullopt;
  };
  const auto values_a = values(a), values_b = values(b);
  if (values_a && values_b) return Common(*values_a, *values_b).empty();
  const auto types_a = TypesOf(a), types_b = TypesOf(b);
  const auto all_outside = [](const SchemaJson& list, const std::vector<std::string>& types) {
    return std::none_of(list.begin(), list.end(), [&](const SchemaJson& value) {
      return std::any_of(types.begin(), types.end(), [&](const std::string& type) { return HasType(value, type); });
    });
  };
  if (values_a && types_b) return all_outside(*values_a, *types_b);
  if (values_b && types_a) return all_outside(*values_b, *types_a);
  if (!types_a || !types_b) return false;
  if (CommonTypes(SchemaJson(*types_a), SchemaJson(*types_b)).empty()) return true;
  if (*types_a != std::vector<std::string>{"object"} || *types_b != std::vector<std::string>{"object"}) return false;
  // A property that both need, or that one needs and the other does not allow.
  const auto needs = [](const SchemaJson& schema, const std::string& name) {
    const auto it = schema.find("required");
    return it != schema.end() && it->is_array() && std::find(it->begin(), it->end(), name) != it->end();
  };
  const auto property = [](const SchemaJson& schema, const std::string& name) {
    const auto it = schema.find("properties");
    if (it != schema.end() && it->is_object() && it->contains(name)) return (*it)[name];
    return schema.contains("patternProperties") ? SchemaJson(true) : AdditionalOf(schema);
  };
  for (const SchemaJson* one : {&a, &b}) {
    const auto it = one->find("required");
    if (it == one->end() || !it->is_array()) continue;
    for (const SchemaJson& name_value : *it) {
      if (!name_value.is_string()) continue;
      const auto name = name_value.get<std::string>();
      const SchemaJson of_a = property(a, name), of_b = property(b, name);
      if (of_a == SchemaJson(false) || of_b == SchemaJson(false)) return true;
      if (needs(a, name) && needs(b, name) && AreDisjoint(of_a, of_b)) return true;
    }
  }
  return false;
}

}  // namespace switchyard::server
