#include "server/constraint/call_grammar.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/constraint/schema_compiler.h"

namespace switchyard::server {
namespace {

using grammar::Grammar;
using grammar::RuleId;
using grammar::StateId;

// References of a schema that becomes a part of another one, at `place` ("#/1").
void MoveReferences(const std::string& place, SchemaJson* schema) {
  std::vector<SchemaJson*> todo = {schema};
  while (!todo.empty()) {
    SchemaJson* const at = todo.back();
    todo.pop_back();
    if (at->is_array()) {
      for (SchemaJson& part : *at) todo.push_back(&part);
    }
    if (!at->is_object()) continue;
    for (auto& [key, value] : at->items()) {
      const bool has_names =
          key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
      if (has_names && value.is_object()) {
        for (auto& named : value.items()) todo.push_back(&named.value());
      } else if (key == "$ref" && value.is_string() && absl::StartsWith(value.get_ref<const std::string&>(), "#")) {
        value = absl::StrCat(place, value.get_ref<const std::string&>().substr(1));
      } else if (key != "const" && key != "enum" && key != "default" && key != "examples") {
        todo.push_back(&value);
      }
    }
  }
}

// A schema of objects that says nothing of them takes any; arguments that are no object are none.
absl::StatusOr<SchemaJson> ArgumentsSchema(const CallSpec& call) {
  const SchemaJson any = {{"type", "object"}};
  absl::StatusOr<SchemaJson> schema = ParseSchema(call.parameters);
  if (schema.ok() && (!schema->is_object() || schema->empty())) return any;
  const absl::Status fault = schema.ok() ? SchemaCompiler(&*schema).Compile().status() : schema.status();
  if (fault.ok()) return schema;
  if (call.is_strict) return absl::InvalidArgumentError(absl::StrCat(call.name, ": ", fault.message()));
  return any;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Grammar>> GrammarOfCalls(const ConstraintSpec& spec) {
  SchemaJson schemas = SchemaJson::array();
  std::vector<std::string> paths;
  for (const CallSpec& call : spec.calls) {
    ASSIGN_OR_RETURN(SchemaJson schema, ArgumentsSchema(call));
    MoveReferences(absl::StrCat("#/", schemas.size()), &schema);
    schemas.push_back(std::move(schema));
    paths.push_back(absl::StrCat(call.name, ": $"));
  }
  return SchemaCompiler(&schemas).CompileParts(
      paths, [&](const std::vector<RuleId>& arguments, StateId from, JsonRules* rules, Grammar* out) {
        const RuleId call = out->AddRule("call");
        out->Define(call, [&](StateId start) {
          const StateId end = out->NewState();
          for (size_t i = 0; i < spec.calls.size(); ++i) {
            const StateId name = out->Literal(start, spec.calls[i].before);
            const StateId behind = out->Call(out->Call(name, rules->Space()), arguments[i]);
            out->Empty(out->Literal(behind, spec.calls[i].behind), end);
          }
          return end;
        });
        const StateId one = out->Call(from, call);
        if (!spec.between.empty()) out->Empty(out->Call(out->Literal(one, spec.between), call), one);
        return out->Literal(one, spec.end);
      });
}

absl::StatusOr<std::unique_ptr<const Grammar>> BehindFreeText(const FreeText& text, const Grammar& inner) {
  constexpr int kMaxSpaces = 4;
  auto out = std::make_unique<Grammar>(inner);
  const RuleId root = out->AddRule("output"), space = out->AddRule("space");
  out->Define(space, [&](StateId from) {
    const StateId to = out->NewState();
    for (const char c : {' ', '\n'}) out->Bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    return to;
  });
  out->Define(root, [&](StateId from) {
    const StateId free = out->AnyTextUntil(out->Literal(from, text.open), text.close);
    const StateId begin = out->Repeat(free, 0, kMaxSpaces, space);
    if (text.may_be) out->Empty(from, begin);
    return out->Call(begin, inner.root());
  });
  out->SetRoot(root);
  RETURN_IF_ERROR(out->Finish());
  return out;
}

}  // namespace switchyard::server
