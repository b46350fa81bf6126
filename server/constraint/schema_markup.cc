// Arguments that are written in markup (ArgumentMarkup), as states: parameters, and the values that are texts.
//
// What is written here must be what the output's reader makes of it (server/text/output/calls): a text that may also be
// a number, say, begins with nothing that a number begins with.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "server/constraint/free_text.h"
#include "server/constraint/schema_compiler.h"
#include "server/text/output/calls/call_sink.h"
#include "server/text/output/calls/json_scanner.h"

namespace switchyard::server {
namespace {

using grammar::CharClass;
using grammar::Grammar;
using grammar::kNoMaximum;
using grammar::RuleId;
using grammar::StateId;
using text::ValueTypes;

constexpr absl::string_view kNotOfParameters[] = {"anyOf",         "oneOf", "enum", "const", "patternProperties",
                                                  "propertyNames", "$rest"};

absl::Status Refusal(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Whether a parameter of this name can be written, and is read again.
bool IsWritable(absl::string_view name) {
  return !name.empty() && name.size() <= text::kMaxNameBytes && absl::StripAsciiWhitespace(name) == name &&
         name.find_first_of("<>\"\n") == absl::string_view::npos;
}

// The types of the root's parameters, as the reader knows them from the request's tools.
text::ToolTypes TypesOfTool(const SchemaJson& schema) {
  SchemaJson tools = SchemaJson::array();
  tools.push_back({});
  tools[0]["function"] = {{"name", "f"}, {"parameters", schema}};
  return text::ToolTypes(tools);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Grammar>> SchemaCompiler::CompileParameters(const std::vector<std::string>& paths,
                                                                                 const std::vector<SchemaJson>& given,
                                                                                 const ArgumentMarkup& markup,
                                                                                 DefineRoot define_root) {
  markup_ = &markup;
  rules_.EscapeLessThan();
  const RuleId root = grammar_.AddRule("root");
  std::vector<RuleId> rules;
  for (size_t i = 0; i < paths.size(); ++i) {
    rules.push_back(grammar_.AddRule(paths[i]));
    RETURN_IF_ERROR(DefineParameters(rules[i], (*root_)[i], TypesOfTool(given[i]), paths[i]));
  }
  grammar_.Define(root, [&](StateId from) { return define_root(rules, from, &rules_, &grammar_); });
  return DefineAll();
}

// The schema of an object with `properties`, all that are required among them.
absl::StatusOr<SchemaJson> SchemaCompiler::ParametersOf(SchemaJson schema, const std::string& path) {
  absl::StatusOr<SchemaJson> joined = Joined(std::move(schema));
  if (!joined.ok()) return Refusal(path, joined.status().message());
  if (joined->is_boolean() && joined->get<bool>()) *joined = SchemaJson::object();
  if (!joined->is_object()) return Refusal(path, "a schema must be an object");
  if (const absl::Status status = CheckKeywords(*joined); !status.ok()) return Refusal(path, status.message());
  for (const absl::string_view keyword : kNotOfParameters) {
    if (joined->contains(std::string(keyword))) {
      return Refusal(path, absl::StrCat("\"", keyword == "$rest" ? "allOf" : keyword,
                                        "\" is not supported for a function whose arguments are not written as JSON"));
    }
  }
  // Both are there before either is referred to: a new member moves the others.
  if (SchemaJson& given = (*joined)["properties"]; given.is_null()) given = SchemaJson::object();
  if (SchemaJson& given = (*joined)["required"]; !given.is_array()) given = SchemaJson::array();
  SchemaJson& properties = (*joined)["properties"];
  const SchemaJson& required = (*joined)["required"];
  const SchemaJson others = joined->value("additionalProperties", SchemaJson(true));
  if (!properties.is_object()) return Refusal(path, "\"properties\" must be an object");
  if (const absl::Status status = CheckRequired(required); !status.ok()) return Refusal(path, status.message());
  auto& members = properties.get_ref<SchemaJson::object_t&>();  // added to without looking
  absl::flat_hash_set<std::string> known;
  for (const auto& [name, value] : members) known.insert(name);
  const auto bytes_of_others = static_cast<int64_t>(JsonText(others).size());
  for (int64_t left = kMaxCopiedBytes; const SchemaJson& value : required) {
    const auto& name = value.get_ref<const std::string&>();
    if (!known.insert(name).second) continue;
    if ((left -= bytes_of_others) < 0)
      return Refusal(path, "\"additionalProperties\" is too large for that many names that only \"required\" has");
    members.emplace_back(name, others);
  }
  const size_t least = joined->value("minProperties", SchemaJson(0)).is_number_unsigned()
                           ? (*joined).value("minProperties", size_t{0})
                           : 0;
  const SchemaJson most = joined->value("maxProperties", SchemaJson());
  if (least > required.size()) return Refusal(path, "\"minProperties\" that asks for optional ones is not supported");
  if (most.is_number() && most.get<double>() < static_cast<double>(properties.size()))
    return Refusal(path, "\"maxProperties\" that excludes optional ones is not supported");
  if (properties.empty() && others.is_object() && !others.empty())
    return Refusal(path, "\"additionalProperties\" alone is not supported where arguments are not written as JSON");
  return joined;
}

absl::Status SchemaCompiler::DefineParameters(RuleId rule, SchemaJson given, const text::ToolTypes& types,
                                              const std::string& path) {
  ASSIGN_OR_RETURN(const SchemaJson schema, ParametersOf(std::move(given), path));
  const SchemaJson& properties = schema["properties"];
  const SchemaJson& required = schema["required"];
  const bool is_any = properties.empty() && schema.value("additionalProperties", SchemaJson(true)) != SchemaJson(false);
  struct Parameter {
    std::string name;
    RuleId value;
    bool is_optional;
  };
  std::vector<Parameter> parameters;
  absl::flat_hash_set<absl::string_view> needed;
  for (const SchemaJson& name : required) needed.insert(name.get_ref<const std::string&>());
  for (const auto& [name, value] : properties.items()) {
    const bool is_optional = !needed.contains(name);
    if (value == SchemaJson(false) && is_optional) continue;
    if (!IsWritable(name)) {
      return Refusal(
          path, absl::StrCat("the parameter ", Quote(name), " has a name that this model's calls cannot have: 1 to ",
                             text::kMaxNameBytes, " bytes, without < > \" and line feeds, and no space at its ends"));
    }
    SchemaJson of_name = value;
    const ValueTypes seen = types.TypesOf("f", name);
    if (seen.unknown() && markup_->unknown_is_text) {  // read as a text, whatever it is
      absl::StatusOr<SchemaJson> text = MergeSchemas({{"type", "string"}}, value);
      if (!text.ok()) return Refusal(absl::StrCat(path, ".properties.", name), text.status().message());
      of_name = *std::move(text);
    }
    value_types_.push_back(seen);
    parameters.push_back({name,
                          RuleOf(std::move(of_name), absl::StrCat(path, ".properties.", name),
                                 static_cast<int>(value_types_.size()) - 1),
                          is_optional});
  }
  grammar_.Define(rule, [&](StateId at) {
    if (is_any) return EmitAnyParameters(at);
    for (const Parameter& parameter : parameters) {
      const StateId behind = grammar_.NewState();
      if (parameter.is_optional) grammar_.Empty(at, behind);
      grammar_.Empty(grammar_.Call(EmitKey(parameter.name, at), parameter.value), behind);
      at = behind;
    }
    return at;
  });
  return absl::OkStatus();
}

StateId SchemaCompiler::EmitKey(absl::string_view name, StateId from) {
  return grammar_.Literal(from, absl::StrCat(markup_->key_open, name, markup_->behind_key));
}

// Of names as programs have them, any number of times.
StateId SchemaCompiler::EmitAnyParameters(StateId from) {
  constexpr int kMostLetters = 64;
  const RuleId letter = grammar_.AddRule("letter of a name"), one = grammar_.AddRule("parameter");
  grammar_.Define(letter, [&](StateId at) {
    return grammar_.OneOf(at, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  });
  grammar_.Define(one, [&](StateId at) {
    const StateId name = grammar_.Repeat(grammar_.Literal(at, markup_->key_open), 1, kMostLetters, letter);
    const StateId end = grammar_.NewState();
    EmitFreeValue({}, 0, grammar_.Literal(name, markup_->behind_key), end);
    return end;
  });
  return grammar_.Repeat(from, 0, kNoMaximum, one);
}

void SchemaCompiler::EmitValueEnd(StateId from, StateId to) {
  grammar_.Empty(grammar_.Literal(from, absl::StrCat(markup_->before_close, markup_->close, markup_->behind_close)),
                 to);
}

void SchemaCompiler::EmitFreeValue(const CharClass& not_first, int32_t min, StateId from, StateId to) {
  const auto free = [&](StateId at) {
    const StateId end =
        EmitFreeText({.until = markup_->close, .without = markup_->not_in_values}, at, nullptr, &grammar_);
    grammar_.Empty(grammar_.Literal(end, markup_->behind_close), to);
  };
  if (not_first.empty() && min == 0) return free(from);
  CharClass others = NotInside();
  others.Add('\n', '\n');  // of which one may not count
  if (min == 0) EmitValueEnd(from, to);
  CharClass not_here = not_first;
  not_here.Add(others);
  const StateId first = grammar_.OneOf(from, not_here.Complement());
  const RuleId character = grammar_.AddRule("character");
  grammar_.Define(character, [&](StateId at) { return grammar_.OneOf(at, others.Complement()); });
  const int32_t more = std::max(min, 1) - 1;
  free(grammar_.Repeat(first, more, more, character));
}

std::optional<std::string> SchemaCompiler::WrittenAs(const SchemaJson& value, int value_of) const {
  if (value_of == kJson || !value.is_string()) return LiteralOf(value);
  const auto text = value.get<std::string>();
  const ValueTypes types = value_types_[static_cast<size_t>(value_of)];
  const bool loses_ends = markup_->trims_newlines && markup_->before_close.empty() &&
                          (absl::StartsWith(text, "\n") || absl::EndsWith(text, "\n"));
  const bool ends_early = std::any_of(markup_->not_in_values.begin(), markup_->not_in_values.end(),
                                      [&text](const std::string& marker) { return absl::StrContains(text, marker); });
  if (loses_ends || ends_early) return std::nullopt;
  if (text::JsonOfValue(text, types, markup_->unknown_is_text) != text::JsonString(text)) return std::nullopt;
  return text;
}

CharClass SchemaCompiler::NotFirst(int value_of) const {
  const ValueTypes types = value_types_[static_cast<size_t>(value_of)];
  CharClass out;
  if (types.only_text() || (types.unknown() && markup_->unknown_is_text)) return out;
  const auto add = [&out](absl::string_view chars) {
    for (const char c : chars) out.Add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  };
  const auto may_be = [&types](ValueTypes::Type type) { return types.unknown() || types.Has(type); };
  if (may_be(ValueTypes::kNumber)) add("-0123456789");
  if (may_be(ValueTypes::kObject)) add("{");
  if (may_be(ValueTypes::kArray)) add("[");
  if (may_be(ValueTypes::kBoolean)) add("tTfF");
  if (types.unknown()) add("nN\"");
  if (!out.empty()) add(" \t\n\v\f\r");
  return out;
}

CharClass SchemaCompiler::NotInside() const {
  CharClass out = {{'<', '<'}};
  if (markup_->trims_newlines && markup_->before_close.empty()) out.Add('\n', '\n');
  return out;
}

}  // namespace switchyard::server
