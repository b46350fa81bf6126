#include "server/constraint/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/constraint/json_schema.h"

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

// The same for equal values, as 1 and 1.0 are.
size_t HashOfValue(const SchemaJson& value) {
  if (value.is_number()) return absl::HashOf(value.get<double>());
  if (value.is_string()) return absl::HashOf(value.get_ref<const std::string&>());
  if (value.is_boolean()) return absl::HashOf(value.get<bool>());
  size_t hash = absl::HashOf(value.size(), value.is_array(), value.is_object());
  for (auto it = value.begin(); it != value.end(); ++it)
    hash = absl::HashOf(hash, value.is_object() ? absl::HashOf(it.key()) : size_t{0}, HashOfValue(*it));
  return hash;
}

struct HashOfPointed {
  size_t operator()(const SchemaJson* value) const { return HashOfValue(*value); }
};
struct ArePointedEqual {
  bool operator()(const SchemaJson* a, const SchemaJson* b) const { return *a == *b; }
};
using ValueSet = absl::flat_hash_set<const SchemaJson*, HashOfPointed, ArePointedEqual>;

ValueSet SetOf(const SchemaJson& values) {
  ValueSet set;
  for (const SchemaJson& value : values) set.insert(&value);
  return set;
}

SchemaJson Common(const SchemaJson& a, const SchemaJson& b) {
  const ValueSet in_b = SetOf(b);
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& value : a) {
    if (in_b.contains(&value)) both.push_back(value);
  }
  return both;
}

SchemaJson CommonTypes(const SchemaJson& a, const SchemaJson& b) {
  const ValueSet in_b = SetOf(b);  // also of one that is no list
  ValueSet seen;
  const SchemaJson integer = "integer", number = "number";
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& type : a) {
    if (!type.is_string() || !seen.insert(&type).second) continue;
    if (in_b.contains(&type) || (type == integer && in_b.contains(&number))) {
      both.push_back(type);
    } else if (type == number && in_b.contains(&integer)) {
      both.push_back(integer);
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
    RETURN_IF_ERROR(CheckRequired(a));
    RETURN_IF_ERROR(CheckRequired(b));
    const ValueSet in_a = SetOf(a);
    to = a;
    for (const SchemaJson& name : b) {
      if (!in_a.contains(&name)) to.push_back(name);
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

// Of a value with all that is in it.
int64_t NumValues(const SchemaJson& value) {
  int64_t sum = 1;
  if (!value.is_structured()) return sum;
  for (const SchemaJson& part : value) sum += NumValues(part);
  return sum;
}

// The only values that a schema takes, where it lists them.
std::optional<std::vector<const SchemaJson*>> ValuesOf(const SchemaJson& schema) {
  std::vector<const SchemaJson*> values;
  if (const auto one = schema.find("const"); one != schema.end()) {
    values.push_back(&*one);
    return values;
  }
  const auto list = schema.find("enum");
  if (list == schema.end() || !list->is_array()) return std::nullopt;
  for (const SchemaJson& value : *list) values.push_back(&value);
  return values;
}

bool HaveCommonType(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&b](const std::string& x) {
    return std::any_of(b.begin(), b.end(), [&x](const std::string& y) {
      return x == y || (x == "integer" && y == "number") || (x == "number" && y == "integer");
    });
  });
}

bool HaveTypes(const std::vector<const SchemaJson*>& values, const std::vector<std::string>& types) {
  return std::any_of(values.begin(), values.end(), [&types](const SchemaJson* value) {
    return std::any_of(types.begin(), types.end(), [value](const std::string& type) { return HasType(*value, type); });
  });
}

// What a schema says of a property; null: nothing.
const SchemaJson* PropertyOf(const SchemaJson& schema, const std::string& name, int64_t* comparisons) {
  if (const auto all = schema.find("properties"); all != schema.end() && all->is_object()) {
    *comparisons -= static_cast<int64_t>(all->size());
    if (const auto it = all->find(name); it != all->end()) return &*it;
  }
  if (schema.contains("patternProperties")) return nullptr;
  const auto others = schema.find("additionalProperties");
  return others == schema.end() ? nullptr : &*others;
}

bool Requires(const SchemaJson& schema, const SchemaJson& name, int64_t* comparisons) {
  const auto it = schema.find("required");
  if (it == schema.end() || !it->is_array()) return false;
  *comparisons -= static_cast<int64_t>(it->size());
  return std::find(it->begin(), it->end(), name) != it->end();
}

// Whether a property that both need cannot be, or one that one needs and the other does not allow.
bool DifferInProperties(const SchemaJson& a, const SchemaJson& b, int64_t* comparisons) {
  for (const SchemaJson* one : {&a, &b}) {
    const auto required = one->find("required");
    if (required == one->end() || !required->is_array()) continue;
    for (const SchemaJson& name : *required) {
      if (*comparisons < 0) return false;
      if (!name.is_string()) continue;
      const bool in_other = Requires(one == &a ? b : a, name, comparisons);
      if (one == &b && in_other) continue;  // it was among those of a
      const SchemaJson* const of_a = PropertyOf(a, name.get_ref<const std::string&>(), comparisons);
      const SchemaJson* const of_b = PropertyOf(b, name.get_ref<const std::string&>(), comparisons);
      if (of_a != nullptr && *of_a == SchemaJson(false)) return true;
      if (of_b != nullptr && *of_b == SchemaJson(false)) return true;
      if (in_other && of_a != nullptr && of_b != nullptr && AreDisjoint(*of_a, *of_b, comparisons)) return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckRequired(const SchemaJson& required) {
  if (!required.is_array()) return absl::OkStatus();
  if (static_cast<int64_t>(required.size()) > kMaxSchemaKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"required\" has ", required.size(), " names, limit ", kMaxSchemaKeys));
  }
  for (const SchemaJson& name : required) {
    if (!name.is_string()) return absl::InvalidArgumentError("\"required\" must have texts");
    const size_t bytes = name.get_ref<const std::string&>().size();
    if (static_cast<int64_t>(bytes) > kMaxSchemaKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"required\" has a name of ", bytes, " bytes, limit ", kMaxSchemaKeyBytes));
    }
  }
  return absl::OkStatus();
}

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

int64_t BytesWhenMerged(const SchemaJson& a, const SchemaJson& b) {
  const auto bytes_of = [](const SchemaJson& value) { return static_cast<int64_t>(JsonText(value).size()); };
  int64_t bytes = 0;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [key, value] : one->items()) {
      if (!IsAnnotation(key)) bytes += static_cast<int64_t>(key.size()) + bytes_of(value);
    }
    const auto properties = one->find("properties"), others = other->find("additionalProperties");
    if (properties != one->end() && others != other->end())
      bytes += static_cast<int64_t>(properties->size()) * bytes_of(*others);
  }
  return bytes;
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
    if (it->is_object()) return types;
    constexpr size_t kMost = 8;  // one more than there are: an unknown one, which is refused later, is among these
    for (const SchemaJson& type : *it) {  // also of one that is no list
      if (!type.is_string() || types.size() == kMost) continue;
      if (std::find(types.begin(), types.end(), type.get_ref<const std::string&>()) == types.end())
        types.push_back(type.get<std::string>());
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

bool AreDisjoint(const SchemaJson& a, const SchemaJson& b, int64_t* comparisons) {
  if (a.is_boolean() || b.is_boolean()) return a == SchemaJson(false) || b == SchemaJson(false);
  *comparisons -= static_cast<int64_t>(8 * (a.size() + b.size()));  // of the keywords that are looked up below
  if (*comparisons < 0) return false;
  const auto values_a = ValuesOf(a), values_b = ValuesOf(b);
  for (const auto* values : {&values_a, &values_b}) {
    if (!values->has_value()) continue;
    for (const SchemaJson* value : **values) *comparisons -= 4 * NumValues(*value);
  }
  if (values_a && values_b) {
    const ValueSet in_b(values_b->begin(), values_b->end());
    return std::none_of(values_a->begin(), values_a->end(), [&](const SchemaJson* x) { return in_b.contains(x); });
  }
  const auto types_a = TypesOf(a), types_b = TypesOf(b);
  const auto may_compare = [comparisons](size_t x, size_t y) {
    return (*comparisons -= static_cast<int64_t>((x + 1) * (y + 1))) >= 0;
  };
  if (values_a && types_b) return may_compare(values_a->size(), types_b->size()) && !HaveTypes(*values_a, *types_b);
  if (values_b && types_a) return may_compare(values_b->size(), types_a->size()) && !HaveTypes(*values_b, *types_a);
  if (!types_a || !types_b || !may_compare(types_a->size(), types_b->size())) return false;
  if (!HaveCommonType(*types_a, *types_b)) return true;
  if (*types_a != std::vector<std::string>{"object"} || *types_b != std::vector<std::string>{"object"}) return false;
  return DifferInProperties(a, b, comparisons);
}

}  // namespace switchyard::server
