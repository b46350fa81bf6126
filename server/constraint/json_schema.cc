#include "server/constraint/json_schema.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/constraint/json_number.h"
#include "server/constraint/schema_compiler.h"

namespace switchyard::server {
namespace {

using grammar::Grammar;
using grammar::RuleId;
using grammar::StateId;

constexpr absl::string_view kRefused[] = {"not",
                                          "if",
                                          "then",
                                          "else",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "dependencies",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "unevaluatedItems",
                                          "unevaluatedProperties",
                                          "$dynamicRef",
                                          "$recursiveRef"};

absl::Status Fault(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// What a schema says of the values in its enum, beside the enum; found once for all of them.
struct ValueLimits {
  std::optional<std::vector<std::string>> types;
  std::vector<std::pair<std::string, const SchemaJson*>> keywords;
};

ValueLimits LimitsOf(const SchemaJson& schema) {
  ValueLimits out{.types = TypesOf(schema), .keywords = {}};
  for (const auto& [key, limit] : schema.get_ref<const SchemaJson::object_t&>()) {
    if (IsAnnotation(key) || key == "type" || key == "enum" || key == "const") continue;
    if (TypesOf(SchemaJson{{key, true}}).has_value()) out.keywords.emplace_back(key, &limit);
  }
  return out;
}

// Whether a value of an enum is valid under what else its schema says; nullopt: unknown.
std::optional<bool> MayBe(const SchemaJson& value, const ValueLimits& limits) {
  if (limits.types) {
    const std::vector<std::string>& types = *limits.types;
    if (std::none_of(types.begin(), types.end(), [&](const std::string& type) { return HasType(value, type); }))
      return false;
  }
  for (const auto& [key, limit] : limits.keywords) {
    if (!value.is_number() || !limit->is_number()) return std::nullopt;
    if (key == "minimum") {
      if (value < *limit) return false;
    } else if (key == "maximum") {
      if (value > *limit) return false;
    } else {
      return std::nullopt;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Grammar>> SchemaCompiler::Compile() {
  references_[{"#", kJson}] = RuleOf(*root_, "$");
  return DefineAll();
}

absl::StatusOr<std::unique_ptr<const Grammar>> SchemaCompiler::CompileParts(const std::vector<std::string>& paths,
                                                                            DefineRoot define_root) {
  const RuleId root = grammar_.AddRule("root");
  std::vector<RuleId> rules;
  for (size_t i = 0; i < paths.size(); ++i)
    rules.push_back(references_[{absl::StrCat("#/", i), kJson}] = RuleOf((*root_)[i], paths[i]));
  grammar_.Define(root, [&](StateId from) { return define_root(rules, from, &rules_, &grammar_); });
  return DefineAll();
}

absl::StatusOr<std::unique_ptr<const Grammar>> SchemaCompiler::DefineAll() {
  while (!waiting_.empty()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    RETURN_IF_ERROR(Define(next));
    if (grammar_.full() || grammar_.num_rules() > kMaxRules || copied_bytes_ > kMaxCopiedBytes) break;
  }
  if (copied_bytes_ > kMaxCopiedBytes || (!waiting_.empty() && !grammar_.full())) {
    return Fault("$", absl::StrCat("has more than ", kMaxRules, " parts, or more than ", kMaxCopiedBytes,
                                   " bytes when allOf, anyOf and oneOf are joined with what stands beside them"));
  }
  if (const absl::Status status = grammar_.Finish(); !status.ok()) return Fault("$", status.message());
  return std::make_unique<const Grammar>(std::move(grammar_));
}

RuleId SchemaCompiler::RuleOf(SchemaJson schema, std::string path, int value_of) {
  const RuleId rule = grammar_.AddRule(path);
  copied_bytes_ += static_cast<int64_t>(JsonText(schema).size());
  if (copied_bytes_ <= kMaxCopiedBytes) waiting_.push_back({rule, std::move(schema), std::move(path), value_of});
  return rule;
}

absl::Status SchemaCompiler::CheckKeywords(const SchemaJson& schema) {
  for (const absl::string_view keyword : kRefused) {
    if (schema.contains(std::string(keyword)))
      return absl::InvalidArgumentError(absl::StrCat("\"", keyword, "\" is not supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const SchemaJson*> SchemaCompiler::Resolve(const SchemaJson& reference) const {
  if (!reference.is_string()) return absl::InvalidArgumentError("\"$ref\" must be a text");
  const auto text = reference.get<std::string>();
  if (!absl::StartsWith(text, "#") || (text.size() > 1 && text[1] != '/')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"$ref\" must be a pointer into this schema (#/…), is \"", text.substr(0, 100), "\""));
  }
  const SchemaJson* at = root_;
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string name = absl::StrReplaceAll(parts[i], {{"~1", "/"}, {"~0", "~"}, {"%25", "%"}, {"%24", "$"}});
    const SchemaJson* next = nullptr;
    if (at->is_object() && at->contains(name)) {
      next = &(*at)[name];
    } else if (size_t index = 0; at->is_array() && absl::SimpleAtoi(name, &index) && index < at->size()) {
      next = &(*at)[index];
    }
    if (next == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("\"$ref\" \"", text.substr(0, 100), "\" is nowhere"));
    at = next;
  }
  return at;
}

absl::StatusOr<RuleId> SchemaCompiler::RuleOfReference(const SchemaJson& reference, int value_of) {
  ASSIGN_OR_RETURN(const SchemaJson* target, Resolve(reference));
  const auto text = reference.get<std::string>();
  const std::pair<std::string, int> key = {text, value_of};
  if (const auto it = references_.find(key); it != references_.end()) return it->second;
  return references_[key] = RuleOf(*target, text, value_of);
}

absl::StatusOr<SchemaJson> SchemaCompiler::Merged(const SchemaJson& a, const SchemaJson& b) {
  constexpr int64_t kLeastBytes = 64;  // of small ones, which take their time, too
  merged_bytes_ += kLeastBytes + BytesWhenMerged(a, b);
  if (merged_bytes_ > kMaxMergedBytes) {
    return absl::InvalidArgumentError(absl::StrCat("takes more than ", kMaxMergedBytes,
                                                   " bytes to join what stands beside $ref, allOf, anyOf and oneOf"));
  }
  return MergeSchemas(a, b);
}

// Joins what stands beside a reference or in allOf, until there is none.
absl::StatusOr<SchemaJson> SchemaCompiler::Joined(SchemaJson schema) {
  for (int i = 0; schema.is_object(); ++i) {
    if (i > kMaxJoins) return absl::InvalidArgumentError("allOf and $ref go in circles, or are too many");
    if (const auto it = schema.find("$ref"); it != schema.end()) {
      ASSIGN_OR_RETURN(const SchemaJson* target, Resolve(*it));
      schema.erase("$ref");
      ASSIGN_OR_RETURN(schema, Merged(*target, schema));
    } else if (const auto all = schema.find("allOf"); all != schema.end()) {
      if (!all->is_array()) return absl::InvalidArgumentError("\"allOf\" must be a list");
      const SchemaJson parts = *all;
      schema.erase("allOf");
      // Choices go last: what else must hold is then joined into each of their branches.
      SchemaJson choices = SchemaJson::array();
      for (const SchemaJson& part : parts) {
        if (!part.is_object() && !part.is_boolean()) return absl::InvalidArgumentError("\"allOf\" must have schemas");
        if (part.is_object() && part.size() == 1 && (part.contains("anyOf") || part.contains("oneOf"))) {
          choices.push_back(part);
        } else if (part.is_object() && part.contains("$ref")) {
          SchemaJson beside = part;
          beside.erase("$ref");
          ASSIGN_OR_RETURN(const SchemaJson* target, Resolve(part["$ref"]));
          ASSIGN_OR_RETURN(beside, Merged(*target, beside));
          ASSIGN_OR_RETURN(schema, Merged(schema, beside));
          if (++i > kMaxJoins) break;
        } else {
          ASSIGN_OR_RETURN(schema, Merged(schema, part));
          if (++i > kMaxJoins) break;
        }
      }
      if (choices.empty() || !schema.is_object()) continue;
      const bool more = schema.contains("allOf") || schema.contains("$ref");
      if (!more && !schema.contains("anyOf") && !schema.contains("oneOf")) {  // the first may be the schema's own
        for (const auto& [key, value] : choices[0].items()) schema[key] = value;
        choices.erase(0);
      }
      if (choices.empty()) continue;
      if (!more) {
        schema["$rest"] = choices;  // joined into the branches by DefineChoice
        return schema;
      }
      SchemaJson& left = schema["allOf"];
      if (!left.is_array()) left = SchemaJson::array();
      left.insert(left.end(), choices.begin(), choices.end());
    } else {
      return schema;
    }
  }
  return schema;
}

absl::Status SchemaCompiler::Define(const Waiting& waiting) {
  if (waiting.schema.is_boolean()) {
    if (!waiting.schema.get<bool>()) return absl::OkStatus();  // no way to its end: never taken
    const RuleId any = waiting.value_of == kJson ? rules_.Value() : -1;
    grammar_.Define(waiting.rule, [&](StateId from) {
      const StateId to = grammar_.NewState();
      if (any >= 0) {
        grammar_.Empty(grammar_.Call(from, any), to);
      } else {
        EmitFreeValue({}, 0, from, to);
      }
      return to;
    });
    return absl::OkStatus();
  }
  if (!waiting.schema.is_object()) return Fault(waiting.path, "a schema must be an object, true or false");
  // A reference alone is a call, so that it may be recursive.
  const auto is_reference = [](const auto& item) { return item.key() == "$ref" || IsAnnotation(item.key()); };
  bool only_reference = waiting.schema.contains("$ref");
  for (auto it = waiting.schema.begin(); it != waiting.schema.end(); ++it) only_reference &= is_reference(it);
  if (only_reference) {
    const absl::StatusOr<RuleId> target = RuleOfReference(waiting.schema["$ref"], waiting.value_of);
    if (!target.ok()) return Fault(waiting.path, target.status().message());
    grammar_.Define(waiting.rule, [&](StateId from) { return grammar_.Call(from, *target); });
    return absl::OkStatus();
  }
  absl::StatusOr<SchemaJson> joined = Joined(waiting.schema);
  if (!joined.ok()) return Fault(waiting.path, joined.status().message());
  const SchemaJson& schema = *joined;
  if (schema.is_boolean()) return Define({waiting.rule, schema, waiting.path, waiting.value_of});
  absl::Status status = CheckKeywords(schema);
  if (!status.ok()) return Fault(waiting.path, status.message());
  if (schema.contains("anyOf")) {
    status = DefineChoice(waiting, schema, "anyOf");
  } else if (schema.contains("oneOf")) {
    status = DefineChoice(waiting, schema, "oneOf");
  } else if (schema.contains("const") || schema.contains("enum")) {
    status = DefineValues(waiting, schema);
  } else {
    status = DefineTypes(waiting, schema);
  }
  if (!status.ok() && !absl::StartsWith(status.message(), "$")) return Fault(waiting.path, status.message());
  return status;
}

absl::Status SchemaCompiler::DefineChoice(const Waiting& waiting, SchemaJson schema, const char* keyword) {
  const SchemaJson branches = schema[keyword];
  schema.erase(keyword);
  if (!branches.is_array() || branches.empty() || branches.size() > kMaxBranches)
    return absl::InvalidArgumentError(absl::StrCat("\"", keyword, "\" must be a list of 1 to ", kMaxBranches));
  if (schema.contains("$rest")) {
    schema["allOf"] = schema["$rest"];
    schema.erase("$rest");
  }
  bool bare = true;
  for (const auto& [key, value] : schema.items()) bare = bare && IsAnnotation(key);
  if (absl::string_view(keyword) == "oneOf") {
    std::vector<SchemaJson> joined;
    for (const SchemaJson& branch : branches) {
      ASSIGN_OR_RETURN(SchemaJson both, Merged(schema, branch));
      ASSIGN_OR_RETURN(both, Joined(std::move(both)));
      for (size_t i = 0; i < joined.size(); ++i) {
        if (AreDisjoint(joined[i], both, &comparisons_left_)) continue;
        if (comparisons_left_ < 0) {
          return absl::InvalidArgumentError(absl::StrCat("\"oneOf\" of ", branches.size(), " branches takes more than ",
                                                         kMaxComparisons, " comparisons to tell them apart"));
        }
        return absl::InvalidArgumentError(absl::StrCat("branches ", i, " and ", joined.size(),
                                                       " of \"oneOf\" may both be valid; use anyOf, or constants or "
                                                       "required properties that tell them apart"));
      }
      copied_bytes_ += static_cast<int64_t>(JsonText(both).size());
      if (copied_bytes_ > kMaxCopiedBytes) return absl::OkStatus();  // Compile says so
      joined.push_back(std::move(both));
    }
  }
  std::vector<RuleId> rules;
  for (size_t i = 0; i < branches.size(); ++i) {
    const std::string path = absl::StrCat(waiting.path, ".", keyword, "[", i, "]");
    if (!branches[i].is_object() && !branches[i].is_boolean())
      return Fault(path, "a schema must be an object, true or false");
    SchemaJson branch = branches[i];
    if (!bare) {
      ASSIGN_OR_RETURN(branch, Merged(schema, branches[i]));
    }
    rules.push_back(RuleOf(std::move(branch), path, waiting.value_of));
  }
  grammar_.Define(waiting.rule, [&](StateId from) {
    const StateId to = grammar_.NewState();
    for (const RuleId rule : rules) grammar_.Empty(grammar_.Call(from, rule), to);
    return to;
  });
  return absl::OkStatus();
}

absl::Status SchemaCompiler::DefineValues(const Waiting& waiting, const SchemaJson& schema) {
  SchemaJson values = schema.contains("const") ? SchemaJson::array({schema["const"]}) : schema["enum"];
  if (!values.is_array()) return absl::InvalidArgumentError("\"enum\" must be a list");
  std::vector<std::string> texts;
  const ValueLimits limits = LimitsOf(schema);
  for (const SchemaJson& value : values) {
    const std::optional<bool> valid = MayBe(value, limits);
    if (!valid) return absl::InvalidArgumentError("other limits beside \"enum\" are not supported");
    const std::optional<std::string> text = WrittenAs(value, waiting.value_of);
    if (*valid && text.has_value()) texts.push_back(*text);
  }
  grammar_.Define(waiting.rule, [&](StateId from) {
    const StateId behind = grammar_.OneOfTexts(from, texts);
    if (waiting.value_of == kJson) return behind;
    const StateId to = grammar_.NewState();
    EmitValueEnd(behind, to);
    return to;
  });
  return absl::OkStatus();
}

absl::Status SchemaCompiler::DefineTypes(const Waiting& waiting, const SchemaJson& schema) {
  const std::optional<std::vector<std::string>> types = TypesOf(schema);
  if (!types) return Define({waiting.rule, SchemaJson(true), waiting.path, waiting.value_of});
  absl::Status status;
  grammar_.Define(waiting.rule, [&](StateId begin) {
    const StateId to = grammar_.NewState();
    const StateId json = waiting.value_of == kJson ? to : grammar_.NewState();
    if (waiting.value_of != kJson) EmitValueEnd(json, to);
    for (const std::string& type : *types) {
      const StateId from = grammar_.NewState();
      grammar_.Empty(begin, from);
      const bool is_text = waiting.value_of != kJson && type == "string";
      const absl::Status one =
          is_text ? EmitText(schema, waiting.value_of, from, to) : EmitType(type, waiting, schema, from, json);
      if (status.ok()) status = one;
    }
    return to;
  });
  return status;
}

absl::Status SchemaCompiler::EmitType(const std::string& type, const Waiting& waiting, const SchemaJson& schema,
                                      StateId from, StateId to) {
  if (type == "null") {
    grammar_.Empty(grammar_.Literal(from, "null"), to);
  } else if (type == "boolean") {
    grammar_.Empty(grammar_.OneOfTexts(from, {"false", "true"}), to);
  } else if (type == "string") {
    return EmitString(schema, from, to);
  } else if (type == "number" || type == "integer") {
    return EmitNumber(schema, type == "integer", from, to);
  } else if (type == "array") {
    return EmitArray(schema, waiting.path, from, to);
  } else if (type == "object") {
    return EmitObject(schema, waiting.path, from, to);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"type\" \"", type.substr(0, 40), "\" is not known"));
  }
  return absl::OkStatus();
}

std::string SchemaCompiler::LiteralOf(const SchemaJson& value) const {
  const std::string json = JsonText(value);
  return markup_ == nullptr ? json : absl::StrReplaceAll(json, {{"<", "\\u003c"}});
}

absl::StatusOr<std::unique_ptr<const Grammar>> GrammarOfSchema(absl::string_view schema) {
  ASSIGN_OR_RETURN(const SchemaJson parsed, ParseSchema(schema));
  return SchemaCompiler(&parsed).Compile();
}

absl::StatusOr<SchemaJson> ParseSchema(absl::string_view text) {
  SchemaJson schema;
  const JsonLimits limits = {.max_depth = kMaxSchemaDepth,
                             .max_values = 50'000,
                             .max_keys = kMaxSchemaKeys,
                             .max_key_bytes = kMaxSchemaKeyBytes,
                             .lenient = false};
  if (text.size() > kMaxSchemaBytes)
    return absl::InvalidArgumentError(absl::StrCat("has ", text.size(), " bytes, limit ", kMaxSchemaBytes));
  if (const std::optional<JsonFault> fault = ReadJson(text, limits, &schema))
    return absl::InvalidArgumentError(absl::StrCat("is no schema: ", fault->reason));
  return schema;
}

absl::StatusOr<std::unique_ptr<const Grammar>> GrammarOfAnyObject() {
  const SchemaJson schema = {{"type", "object"}};
  return SchemaCompiler(&schema).Compile();
}

}  // namespace switchyard::server
