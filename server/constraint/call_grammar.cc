#include "server/constraint/call_grammar.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/constraint/free_text.h"
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

// Arguments that are no object, and none at all, are any object.
SchemaJson AnyObject() { return {{"type", "object"}}; }

absl::Status Named(const CallSpec& call, const absl::Status& fault) {
  return absl::InvalidArgumentError(absl::StrCat(call.name, ": ", fault.message()));
}

// The calls, whose arguments are `arguments`, between what the format has around them.
StateId EmitCalls(const ConstraintSpec& spec, const std::vector<RuleId>& arguments, StateId from, JsonRules* rules,
                  Grammar* out) {
  const bool is_json = spec.markup.key_open.empty();
  const RuleId call = out->AddRule("call");
  out->Define(call, [&](StateId start) {
    const StateId end = out->NewState();
    for (size_t i = 0; i < spec.calls.size(); ++i) {
      const StateId name = out->Literal(start, spec.calls[i].before);
      const StateId behind = out->Call(is_json ? out->Call(name, rules->Space()) : name, arguments[i]);
      out->Empty(out->Literal(behind, spec.calls[i].behind), end);
    }
    return end;
  });
  const StateId one = out->Call(from, call);
  if (!spec.between.empty()) out->Empty(out->Call(out->Literal(one, spec.between), call), one);
  return out->Literal(one, spec.end);
}

// `schemas`: of the calls' arguments.
absl::StatusOr<std::unique_ptr<const Grammar>> CompileCalls(const ConstraintSpec& spec,
                                                            const std::vector<SchemaJson>& schemas) {
  SchemaJson all = SchemaJson::array();
  std::vector<std::string> paths;
  for (size_t i = 0; i < schemas.size(); ++i) {
    all.push_back(schemas[i]);
    paths.push_back("$");  // a fault gets the name of its call from Named
  }
  // As the root of its schema, so that the types of its parameters are found there, too.
  for (size_t i = 0; i < schemas.size(); ++i) MoveReferences(absl::StrCat("#/", i), &all[i]);
  const auto define = [&](const std::vector<RuleId>& arguments, StateId from, JsonRules* rules, Grammar* out) {
    if (spec.opener.empty()) return EmitCalls(spec, arguments, from, rules, out);
    StateId end;
    const StateId opened = EmitFreeText({.until = spec.opener, .without = spec.not_in_text}, from, &end, out);
    out->Empty(EmitCalls(spec, arguments, out->Literal(opened, spec.behind_opener), rules, out), end);
    return end;
  };
  SchemaCompiler compiler(&all);
  return spec.markup.key_open.empty() ? compiler.CompileParts(paths, define)
                                      : compiler.CompileParameters(paths, schemas, spec.markup, define);
}

// Of one call alone.
absl::Status FaultOf(ConstraintSpec spec, size_t call, const SchemaJson& schema) {
  spec.calls = {spec.calls[call]};
  return CompileCalls(spec, {schema}).status();
}

}  // namespace

ArgumentMarkup MarkupOf(const text::ToolFormat& format, absl::FunctionRef<std::string(absl::string_view)> mark) {
  if (format.has_json_arguments()) return {};
  const text::ParameterSyntax& syntax = format.parameters;
  ArgumentMarkup markup = {
      .key_open = mark(syntax.key_open),
      .behind_key = absl::StrCat(mark(syntax.key_close), syntax.behind_key, mark(syntax.value_open)),
      .before_close = std::string(syntax.before_close),
      .close = mark(syntax.value_close),
      .behind_close = std::string(syntax.behind_close),
      .not_in_values = {std::string(syntax.value_close)},
      .trims_newlines = syntax.trims_newlines,
      .unknown_is_text = syntax.unknown_is_text};
  if (syntax.may_miss_close) {
    for (const absl::string_view marker : {syntax.key_open, syntax.end}) markup.not_in_values.emplace_back(marker);
  }
  return markup;
}

absl::StatusOr<std::unique_ptr<const Grammar>> GrammarOfCalls(const ConstraintSpec& spec) {
  std::vector<SchemaJson> schemas;
  for (const CallSpec& call : spec.calls) {
    absl::StatusOr<SchemaJson> schema = ParseSchema(call.parameters);
    if (!schema.ok() && call.is_strict) return Named(call, schema.status());
    schemas.push_back(schema.ok() && schema->is_object() && !schema->empty() ? *std::move(schema) : AnyObject());
  }
  absl::StatusOr<std::unique_ptr<const Grammar>> all = CompileCalls(spec, schemas);
  if (all.ok()) return all;
  // Mostly one of them has a fault: it is looked for only then, as compiling costs milliseconds.
  for (size_t i = 0; i < schemas.size(); ++i) {
    const absl::Status fault = FaultOf(spec, i, schemas[i]);
    if (!fault.ok() && spec.calls[i].is_strict) return Named(spec.calls[i], fault);
    if (!fault.ok()) schemas[i] = AnyObject();
  }
  return CompileCalls(spec, schemas);
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
    const StateId begin_text = out->Literal(from, text.open);
    const StateId free = EmitFreeText({.until = text.close, .without = text.without}, begin_text, nullptr, out.get());
    const StateId begin = out->Repeat(free, 0, kMaxSpaces, space);
    if (text.may_be) out->Empty(from, begin);
    return out->Call(begin, inner.root());
  });
  out->SetRoot(root);
  RETURN_IF_ERROR(out->Finish());
  return out;
}

}  // namespace switchyard::server
