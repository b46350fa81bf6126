// What a schema says of strings, numbers, arrays and objects, as states.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/grammar/regex.h"
#include "server/constraint/json_number.h"
#include "server/constraint/json_schema.h"
#include "server/constraint/schema_compiler.h"

namespace switchyard::server {
namespace {

using grammar::Expression;
using grammar::Grammar;
using grammar::kNoMaximum;
using grammar::RuleId;
using grammar::StateId;

absl::Status BadKeyword(absl::string_view keyword, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", keyword, "\" ", what));
}

// A count, from 0 on; 3.0 is 3.
absl::StatusOr<int32_t> CountOf(const SchemaJson& schema, const char* keyword, int32_t otherwise) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return otherwise;
  const double value = it->is_number() ? it->get<double>() : -1;
  if (!(value >= 0) || value != static_cast<double>(static_cast<int64_t>(std::min(value, 1e15))))
    return BadKeyword(keyword, "must be a whole number from 0 on");
  return static_cast<int32_t>(std::min<double>(value, kNoMaximum));
}

absl::Status BoundOf(const SchemaJson& schema, const char* keyword, std::optional<Decimal>* to) {
  const auto it = schema.find(keyword);
  if (it == schema.end() || it->is_boolean()) return absl::OkStatus();  // draft 4 has booleans for exclusive bounds
  *to = it->is_number() ? Decimal::Parse(JsonText(*it)) : std::nullopt;
  return to->has_value() ? absl::OkStatus() : BadKeyword(keyword, "must be a number of at most 400 digits");
}

// The regex's length is within min to max, or is cut so.
absl::Status LimitLength(int32_t min, int32_t max, Expression* expression) {
  const grammar::LengthRange length = LengthOf(*expression);
  if (length.min >= min && length.max <= max) return absl::OkStatus();
  Expression* only = expression;
  while (only->kind == Expression::Kind::kSequence && only->parts.size() == 1) only = &only->parts[0];
  if (only->kind == Expression::Kind::kRepeat && only->parts[0].kind == Expression::Kind::kChars) {
    only->min = std::max(only->min, min);
    only->max = std::min(only->max, max);
    if (only->min <= only->max) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"pattern\" or \"format\" beside minLength ", min, " or maxLength ", max,
      " is not supported where the text may be shorter or longer than that, unless it repeats one class of letters"));
}

void RemoveChars(const grammar::CharClass& chars, Expression* expression) {
  expression->chars = expression->chars.Without(chars);
  for (Expression& part : expression->parts) RemoveChars(chars, &part);
}

}  // namespace

absl::StatusOr<std::optional<Expression>> SchemaCompiler::InsideOf(const SchemaJson& schema, int32_t min,
                                                                   int32_t max) const {
  std::optional<Expression> inside;
  for (const char* const keyword : {"format", "pattern"}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    if (!it->is_string()) return BadKeyword(keyword, "must be a text");
    const auto text = it->get<std::string>();
    const bool pattern = absl::string_view(keyword) == "pattern";
    const absl::string_view regex = pattern ? absl::string_view(text) : RegexOfFormat(text);
    if (regex.empty() && !pattern) {
      if (IsStandardFormat(text)) return BadKeyword("format", absl::StrCat("\"", text, "\" is not supported"));
      continue;  // a note, which any text is valid under
    }
    if (inside) return BadKeyword("pattern", "beside \"format\" is not supported");
    absl::StatusOr<Expression> parsed =
        ParseRegex(regex, pattern ? grammar::RegexMatch::kSearch : grammar::RegexMatch::kWhole);
    if (!parsed.ok()) return BadKeyword(keyword, parsed.status().message());
    inside = *std::move(parsed);
    RETURN_IF_ERROR(LimitLength(min, max, &*inside));
  }
  return inside;
}

absl::Status SchemaCompiler::EmitString(const SchemaJson& schema, StateId from, StateId to) {
  ASSIGN_OR_RETURN(const int32_t min, CountOf(schema, "minLength", 0));
  ASSIGN_OR_RETURN(const int32_t max, CountOf(schema, "maxLength", kNoMaximum));
  ASSIGN_OR_RETURN(std::optional<Expression> inside, InsideOf(schema, min, max));
  if (inside && markup_ != nullptr) RemoveChars({{'<', '<'}}, &*inside);
  const StateId open = grammar_.Literal(from, "\"");
  const StateId behind = inside ? Emit(*inside, grammar::Spelling::kJson, open, &grammar_)
                                : grammar_.Repeat(open, min, max, rules_.StringChar());
  grammar_.Empty(grammar_.Literal(behind, "\""), to);
  return absl::OkStatus();
}

absl::Status SchemaCompiler::EmitText(const SchemaJson& schema, int value_of, StateId from, StateId to) {
  ASSIGN_OR_RETURN(const int32_t min, CountOf(schema, "minLength", 0));
  ASSIGN_OR_RETURN(const int32_t max, CountOf(schema, "maxLength", kNoMaximum));
  ASSIGN_OR_RETURN(std::optional<Expression> inside, InsideOf(schema, min, max));
  grammar::CharClass not_first = NotFirst(value_of);
  if (!inside && max == kNoMaximum) {
    EmitFreeValue(not_first, min, from, to);
    return absl::OkStatus();
  }
  not_first.Add(NotInside());
  if (inside) {
    RemoveChars(not_first, &*inside);
    EmitValueEnd(Emit(*inside, grammar::Spelling::kPlain, from, &grammar_), to);
    return absl::OkStatus();
  }
  const RuleId character = grammar_.AddRule("character");
  grammar_.Define(character, [&](StateId at) { return grammar_.OneOf(at, NotInside().Complement()); });
  if (min == 0) EmitValueEnd(from, to);
  if (max == 0) return absl::OkStatus();
  const StateId first = grammar_.OneOf(from, not_first.Complement());
  EmitValueEnd(grammar_.Repeat(first, std::max(min, 1) - 1, max - 1, character), to);
  return absl::OkStatus();
}

absl::Status SchemaCompiler::EmitNumber(const SchemaJson& schema, bool whole, StateId from, StateId to) {
  NumberBounds bounds{.whole = whole};
  RETURN_IF_ERROR(BoundOf(schema, "minimum", &bounds.min));
  RETURN_IF_ERROR(BoundOf(schema, "maximum", &bounds.max));
  RETURN_IF_ERROR(BoundOf(schema, "multipleOf", &bounds.multiple_of));
  bounds.above_min = schema.value("exclusiveMinimum", SchemaJson()) == SchemaJson(true);
  bounds.below_max = schema.value("exclusiveMaximum", SchemaJson()) == SchemaJson(true);
  std::optional<Decimal> above, below;
  RETURN_IF_ERROR(BoundOf(schema, "exclusiveMinimum", &above));
  RETURN_IF_ERROR(BoundOf(schema, "exclusiveMaximum", &below));
  if (above && (!bounds.min || Compare(*above, *bounds.min) >= 0)) bounds.min = above, bounds.above_min = true;
  if (below && (!bounds.max || Compare(*below, *bounds.max) <= 0)) bounds.max = below, bounds.below_max = true;
  if (bounds.any()) return EmitNumbers(bounds, from, to, &grammar_);
  grammar_.Empty(grammar_.Call(from, whole ? rules_.Integer() : rules_.Number()), to);
  return absl::OkStatus();
}

absl::Status SchemaCompiler::EmitArray(const SchemaJson& schema, const std::string& path, StateId from, StateId to) {
  ASSIGN_OR_RETURN(const int32_t min, CountOf(schema, "minItems", 0));
  ASSIGN_OR_RETURN(const int32_t max, CountOf(schema, "maxItems", kNoMaximum));
  if (schema.value("uniqueItems", SchemaJson()) == SchemaJson(true) && max > 1)
    return BadKeyword("uniqueItems", "is not supported for more than one item");
  SchemaJson first = schema.value("prefixItems", SchemaJson::array());
  SchemaJson others = schema.value("items", SchemaJson(true));
  if (others.is_array()) {  // before draft 2020-12
    first = others;
    others = schema.value("additionalItems", SchemaJson(true));
  }
  if (!first.is_array()) return BadKeyword("prefixItems", "must be a list");
  const auto num_first = static_cast<int32_t>(first.size());
  const bool says_others =
      schema.contains("additionalItems") || (schema.contains("items") && !schema["items"].is_array());
  if (num_first == 0 || says_others || min > num_first) {
    // More may follow.
  } else {
    others = false;
  }
  const RuleId other = RuleOf(others, absl::StrCat(path, ".items"));
  if (num_first == 0) {
    grammar_.Empty(rules_.List(from, '[', other, min, max, ']'), to);
    return absl::OkStatus();
  }
  const RuleId space = rules_.Space(), comma = rules_.Comma();
  StateId at = grammar_.Call(grammar_.Literal(from, "["), space);
  const StateId end = grammar_.NewState();
  for (int32_t i = 0; i < std::min(num_first, max); ++i) {
    if (i >= min) grammar_.Empty(at, end);
    const RuleId item = RuleOf(first[static_cast<size_t>(i)], absl::StrCat(path, ".prefixItems[", i, "]"));
    at = grammar_.Call(i > 0 ? grammar_.Call(at, comma) : at, item);
  }
  if (max > num_first) {
    const RuleId more = grammar_.AddRule("more items");
    grammar_.Define(more, [&](StateId begin) { return grammar_.Call(grammar_.Call(begin, comma), other); });
    at = grammar_.Repeat(at, std::max(0, min - num_first), max == kNoMaximum ? max : max - num_first, more);
  }
  grammar_.Empty(at, end);
  grammar_.Empty(grammar_.Literal(grammar_.Call(end, space), "]"), to);
  return absl::OkStatus();
}

// What an object may have.
struct SchemaCompiler::Members {
  struct Named {
    RuleId member;
    bool required;
  };
  std::vector<Named> named;    // in order
  std::vector<RuleId> others;  // any of these, any number of times
  int32_t min = 0, max = kNoMaximum;
};

RuleId SchemaCompiler::TextKey(const std::string& name) {
  const RuleId rule = grammar_.AddRule("key");
  grammar_.Define(rule, [&](StateId from) { return grammar_.Literal(from, LiteralOf(SchemaJson(name))); });
  return rule;
}

// A key that no property has.
absl::StatusOr<RuleId> SchemaCompiler::OtherKey(const SchemaJson& schema, const std::vector<std::string>& names,
                                                const std::string& path) {
  if (!schema.contains("propertyNames")) return rules_.KeyOtherThan(names);
  if (!names.empty()) return BadKeyword("propertyNames", "beside \"properties\" is not supported");
  const SchemaJson text = {{"type", "string"}};
  ASSIGN_OR_RETURN(const SchemaJson of_names, MergeSchemas(text, schema["propertyNames"]));
  return RuleOf(of_names, absl::StrCat(path, ".propertyNames"));
}

absl::StatusOr<SchemaCompiler::Members> SchemaCompiler::MembersOf(const SchemaJson& schema, const std::string& path) {
  Members out;
  const SchemaJson properties = schema.value("properties", SchemaJson::object());
  const SchemaJson patterns = schema.value("patternProperties", SchemaJson::object());
  const SchemaJson required = schema.value("required", SchemaJson::array());
  if (!properties.is_object()) return BadKeyword("properties", "must be an object");
  if (!patterns.is_object()) return BadKeyword("patternProperties", "must be an object");
  const bool says_others = schema.contains("additionalProperties");
  const bool closed = !says_others && (!properties.empty() || !patterns.empty());
  const SchemaJson others = schema.value("additionalProperties", SchemaJson(true));
  ASSIGN_OR_RETURN(out.min, CountOf(schema, "minProperties", 0));
  ASSIGN_OR_RETURN(out.max, CountOf(schema, "maxProperties", kNoMaximum));
  ASSIGN_OR_RETURN(NamePatterns of_names, NamePatterns::Parse(patterns));
  RETURN_IF_ERROR(CheckRequired(required));
  // An ordered object looks its names up one by one, so sets know them.
  absl::flat_hash_set<std::string> known, needed;
  std::vector<std::pair<std::string, const SchemaJson*>> wanted;  // null: not among `properties`
  for (const auto& [name, value] : properties.get_ref<const SchemaJson::object_t&>()) {
    known.insert(name);
    wanted.emplace_back(name, &value);
  }
  // draft 4's `required` of a property is a boolean, which says nothing here.
  for (const SchemaJson& value : required.is_array() ? required : SchemaJson::array()) {
    const auto& name = value.get_ref<const std::string&>();
    needed.insert(name);
    if (known.insert(name).second) wanted.emplace_back(name, nullptr);
  }
  std::vector<std::string> names;
  bool names_match = false;
  for (const auto& [name, value] : wanted) {
    if (copied_bytes_ > kMaxCopiedBytes) return out;  // DefineAll says so
    ASSIGN_OR_RETURN(const bool matches, of_names.Match(name, &name_steps_left_));
    SchemaJson of_name = value != nullptr ? *value : matches ? SchemaJson(true) : others;
    if (matches) of_name = SchemaJson{{"allOf", SchemaJson::array({of_name, patterns.front()})}};
    names_match = names_match || matches;
    names.push_back(name);
    if (of_name == SchemaJson(false) && !needed.contains(name)) continue;
    const RuleId key = TextKey(name);
    out.named.push_back(
        {rules_.Member(key, RuleOf(of_name, absl::StrCat(path, ".properties.", name))), needed.contains(name)});
  }
  for (size_t i = 0; !names_match && i < of_names.regexes().size(); ++i) {
    const RuleId key = grammar_.AddRule("key by pattern");
    Expression inside = of_names.regexes()[i];
    if (markup_ != nullptr) RemoveChars({{'<', '<'}}, &inside);
    grammar_.Define(key, [&](StateId from) {
      return grammar_.Literal(Emit(inside, grammar::Spelling::kJson, grammar_.Literal(from, "\""), &grammar_), "\"");
    });
    out.others.push_back(rules_.Member(key, RuleOf(patterns.front(), absl::StrCat(path, ".patternProperties"))));
  }
  if (closed || !patterns.empty() || others == SchemaJson(false)) return out;
  ASSIGN_OR_RETURN(const RuleId key, OtherKey(schema, names, path));
  out.others.push_back(rules_.Member(key, RuleOf(others, absl::StrCat(path, ".additionalProperties"))));
  return out;
}

absl::Status SchemaCompiler::EmitObject(const SchemaJson& schema, const std::string& path, StateId from, StateId to) {
  ASSIGN_OR_RETURN(const Members members, MembersOf(schema, path));
  const StateId inside = grammar_.Call(grammar_.Literal(from, "{"), rules_.Space()), behind = grammar_.NewState();
  RETURN_IF_ERROR(EmitMembers(members, inside, behind));
  grammar_.Empty(grammar_.Literal(grammar_.Call(behind, rules_.Space()), "}"), to);
  return absl::OkStatus();
}

absl::Status SchemaCompiler::EmitMembers(const Members& members, StateId from, StateId to) {
  const RuleId comma = rules_.Comma();
  RuleId other = -1;
  if (!members.others.empty()) {
    other = grammar_.AddRule("other member");
    grammar_.Define(other, [&](StateId begin) {
      const StateId end = grammar_.NewState();
      for (const RuleId one : members.others) grammar_.Empty(grammar_.Call(begin, one), end);
      return end;
    });
  }
  if (members.named.empty()) {
    grammar_.Empty(other < 0 ? from : grammar_.Repeat(from, members.min, members.max, other, comma), to);
    if (other < 0 && members.min > 0) return BadKeyword("minProperties", "is more than the object may have");
    return absl::OkStatus();
  }
  const auto num_required = static_cast<int32_t>(
      std::count_if(members.named.begin(), members.named.end(), [](const Members::Named& m) { return m.required; }));
  if (members.min > std::max(1, num_required))
    return BadKeyword("minProperties", "that asks for optional ones is not supported");
  if (members.max < static_cast<int32_t>(members.named.size()))
    return BadKeyword("maxProperties", "that excludes optional ones is not supported");
  // Two rows of states: nothing has been written yet, or something has.
  StateId none = from, some = -1;
  for (const Members::Named& named : members.named) {
    const StateId behind = grammar_.NewState();
    if (none >= 0) grammar_.Empty(grammar_.Call(none, named.member), behind);
    if (some >= 0) grammar_.Empty(grammar_.Call(grammar_.Call(some, comma), named.member), behind);
    if (named.required) {
      none = -1;
    } else if (some >= 0) {
      grammar_.Empty(some, behind);
    }
    some = behind;
  }
  if (other >= 0 && members.max > static_cast<int32_t>(members.named.size())) {
    const int32_t left =
        members.max == kNoMaximum ? kNoMaximum : members.max - static_cast<int32_t>(members.named.size());
    const RuleId more = grammar_.AddRule("more members");
    grammar_.Define(more, [&](StateId begin) { return grammar_.Call(grammar_.Call(begin, comma), other); });
    const StateId behind = grammar_.Repeat(some, 0, left, more);
    if (none >= 0) grammar_.Empty(grammar_.Repeat(none, 1, left, other, comma), behind);
    some = behind;
  }
  grammar_.Empty(some, to);
  if (none >= 0 && members.min == 0) grammar_.Empty(none, to);
  return absl::OkStatus();
}

}  // namespace switchyard::server
