// Calls whose arguments are written in markup: what a grammar lets through is read as arguments of the tool's schema.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/constraint/call_grammar.h"
#include "server/constraint/constraint_compiler.h"
#include "server/constraint/json_schema.h"
#include "server/text/output/output_parser.h"
#include "tests/server/constraint/walks.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kPlace[] = R"({"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin", "<b>", "7", 7]}, "days": {"type": "integer", "maximum": 14},
    "exact": {"type": "boolean"}, "note": {"type": ["string", "null"]}, "size": {"type": ["string", "number"]},
    "zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "short": {"type": "string", "maxLength": 3},
    "long": {"type": "string", "minLength": 2}, "where": {"$ref": "#/$defs/point"},
    "tags": {"type": "array", "items": {"enum": ["a<b", "c"]}},
    "mixed": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 1}]}, "kind": {"const": "x"}},
  "required": ["city", "days", "mixed"],
  "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}, "name": {"type": "string"}}, "required": ["x"]}}})";

// A format as a model's tokenizer has it: `special` puts marks around markers that are special tokens of some.
struct Spelling {
  const text::ToolFormat* format = nullptr;
  bool special = false;

  std::string Marked(absl::string_view text) const {
    if (!special) return std::string(text);
    const std::string mark(1, kSpecialMark);
    std::vector<std::pair<std::string, std::string>> replaced;
    for (const char* const name :
         {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"})
      replaced.emplace_back(name, absl::StrCat(mark, name, mark));
    return absl::StrReplaceAll(text, replaced);
  }
  ConstraintSpec Spec(const std::vector<std::pair<std::string, std::string>>& functions, bool strict = false) const {
    ConstraintSpec spec = {.kind = ConstraintSpec::Kind::kCalls,
                           .markup = MarkupOf(*format, [this](absl::string_view text) { return Marked(text); }),
                           .between = Marked(format->force_between),
                           .end = Marked(format->force_end)};
    for (const auto& [name, parameters] : functions) {
      spec.calls.push_back({.name = name,
                            .before = absl::StrCat(name, Marked(format->force_behind_name)),
                            .parameters = parameters,
                            .behind = Marked(format->force_behind_arguments),
                            .is_strict = strict});
    }
    return spec;
  }
  std::vector<std::string> Closers() const {
    return {Marked(format->parameters.value_close), Marked(format->parameters.end),
            Marked(format->force_behind_arguments)};
  }
  std::shared_ptr<grammar::Automaton> Make(const ConstraintSpec& spec) const {
    static grammar::AutomatonTotals totals;
    std::vector<std::string> more = Closers();
    for (const char* const marker : {"<arg_key>", "</arg_key>", "<arg_value>", "<tool_call>", "</tool_call>"})
      more.push_back(Marked(marker));
    for (const char* const piece :
         {"</", "<", "null", "None", "true", "12", " 1", "</parameter>", "</arg_value>", "<parameter="})
      more.emplace_back(piece);
    auto grammar = GrammarOfCalls(spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return std::make_shared<grammar::Automaton>(*std::move(grammar), WalkVocabulary(more), &totals);
  }
};

std::vector<Spelling> AllSpellings() {
  std::vector<Spelling> all;
  for (const char* const name : {"glm45", "minimax_m2", "qwen3_coder"}) {
    all.push_back({*text::FindToolFormat(name)});
    all.push_back({*text::FindToolFormat(name), /*special=*/true});
  }
  return all;
}

struct ReadCall {
  std::string name, arguments;
};

// Reads an output as the server does; other content than white space is a failure.
std::vector<ReadCall> Read(const Spelling& spelling, const Json& tools, std::string output) {
  output = absl::StrReplaceAll(output, {{std::string(1, kSpecialMark), ""}});
  // As decoded: bytes that are no UTF-8 become U+FFFD.
  output = Json::parse(Json(output).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  text::OutputParser parser({.tools = spelling.format}, {.tools = text::ToolTypes(tools)});
  std::vector<text::OutputEvent> events;
  parser.Push(absl::StrCat(spelling.format->force_before_name, output), &events);
  parser.Finish(&events);
  std::vector<ReadCall> calls;
  using Kind = text::OutputEvent::Kind;
  for (const text::OutputEvent& event : events) {
    if (event.kind == Kind::kContent) {
      EXPECT_TRUE(absl::StripAsciiWhitespace(event.text).empty()) << event.text << " in " << output;
    } else if (event.kind == Kind::kToolBegin) {
      calls.push_back({event.text, ""});
    } else if (event.kind == Kind::kToolArguments) {
      calls.back().arguments += event.text;
    } else if (event.kind == Kind::kToolEnd) {
      EXPECT_TRUE(event.complete) << output;
    }
  }
  return calls;
}

Json ToolsOf(const std::vector<std::pair<std::string, std::string>>& functions) {
  Json tools = Json::array();
  for (const auto& [name, parameters] : functions) {
    Json function = {{"name", name}, {"parameters", Json::parse(parameters)}};
    tools.push_back({{"type", "function"}});
    tools.back()["function"] = std::move(function);
  }
  return tools;
}

TEST(Markup, WhatAGrammarLetsThroughIsReadAsArgumentsOfTheSchema) {
  const std::vector<std::pair<std::string, std::string>> functions = {
      {"get", kPlace}, {"now", R"({"type": "object", "properties": {}, "additionalProperties": false})"}};
  std::vector<std::shared_ptr<grammar::Automaton>> schemas;
  static grammar::AutomatonTotals totals;
  for (const auto& [name, parameters] : functions) {
    auto grammar = GrammarOfSchema(parameters);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    schemas.push_back(std::make_shared<grammar::Automaton>(*std::move(grammar), WalkVocabulary(), &totals));
  }
  const Json tools = ToolsOf(functions);
  int num_calls = 0, num_parameters = 0;
  for (const Spelling& spelling : AllSpellings()) {
    const auto automaton = spelling.Make(spelling.Spec(functions));
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const absl::StatusOr<std::string> text = Walk(automaton, seed, spelling.Closers());
      ASSERT_TRUE(text.ok()) << spelling.format->name << ": " << text.status();
      const std::vector<ReadCall> calls = Read(spelling, tools, *text);
      EXPECT_FALSE(calls.empty()) << *text;
      for (const ReadCall& call : calls) {
        ASSERT_TRUE(call.name == "get" || call.name == "now") << *text;
        // Where a value is JSON its strings have < escaped.
        const std::string plain = absl::StrReplaceAll(call.arguments, {{"\\u003c", "<"}});
        EXPECT_TRUE(Takes(schemas[call.name == "get" ? 0 : 1], plain))
            << spelling.format->name << ": " << *text << "\nis read as " << call.arguments;
        ++num_calls;
        num_parameters += static_cast<int>(Json::parse(call.arguments).size());
      }
    }
  }
  EXPECT_GT(num_calls, 240);
  EXPECT_GT(num_parameters, 500);
}

// The form of each format's template is taken, with texts as they are.
TEST(Markup, CallsAsTemplatesWriteThem) {
  const char* const parameters =
      R"({"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}},
                                     "required": ["code"]})";
  struct Case {
    const char* format;
    const char* text;
  } const cases[] = {
      {"glm45",
       "run\n<arg_key>code</arg_key>\n<arg_value>if a < b:\n  \"x\"</b></arg_value>\n"
       "<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"},
      {"minimax_m2",
       "run\">\n<parameter name=\"code\">if a < b:\n  \"x\"</b></parameter>\n"
       "<parameter name=\"n\">5</parameter>\n</invoke>\n</minimax:tool_call>"},
      {"qwen3_coder",
       "run>\n<parameter=code>\nif a < b:\n  \"x\"</b>\n</parameter>\n"
       "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"},
  };
  const std::vector<std::pair<std::string, std::string>> functions = {{"run", parameters}};
  for (const Case& c : cases) {
    const Spelling spelling{*text::FindToolFormat(c.format)};
    const auto automaton = spelling.Make(spelling.Spec(functions));
    EXPECT_TRUE(Takes(automaton, c.text)) << c.format;
    const std::vector<ReadCall> calls = Read(spelling, ToolsOf(functions), c.text);
    ASSERT_EQ(calls.size(), 1u) << c.format;
    EXPECT_EQ(Json::parse(calls[0].arguments), Json({{"code", "if a < b:\n  \"x\"</b>"}, {"n", 5}})) << c.format;
    const std::string text = c.text;
    EXPECT_FALSE(Takes(automaton, absl::StrReplaceAll(text, {{"5", "five"}}))) << c.format;
    EXPECT_FALSE(Takes(automaton, absl::StrReplaceAll(text, {{"code", "cod"}}))) << c.format;
    EXPECT_FALSE(Takes(automaton, absl::StrReplaceAll(text, {{"run", "ran"}}))) << c.format;
  }
}

TEST(Markup, TextsHaveNoneOfTheMarkersThatEndThem) {
  const Spelling spelling{*text::FindToolFormat("qwen3_coder")};
  const auto run =
      spelling.Make(spelling.Spec({{"f", R"({"type": "object", "properties": {"a": {"type": "string"}}})"}}));
  const auto with = [](const std::string& value) {
    return absl::StrCat("f>\n<parameter=a>\n", value, "\n</parameter>\n</function>\n</tool_call>");
  };
  EXPECT_TRUE(Takes(run, with("a < b </p> <parameter</function")));
  for (const char* const marker : {"<parameter=", "</function>", "</parameter>"})
    EXPECT_FALSE(Takes(run, with(absl::StrCat("a ", marker, " b")))) << marker;
  EXPECT_TRUE(Takes(run, "f>\n</function>\n</tool_call>")) << "the parameter is optional";
}

TEST(Markup, WhatCannotBeHeldToIsAnyParametersUnlessStrict) {
  const Spelling spelling{*text::FindToolFormat("qwen3_coder")};
  const char* const free = "f>\n<parameter=x>\nanything\n</parameter>\n</function>\n</tool_call>";
  struct Case {
    const char* parameters;
    const char* why;
  } const cases[] = {
      {R"({"anyOf": [{"type": "object"}]})", "f: $: \"anyOf\" is not supported for a function whose arguments"},
      {R"({"type": "object", "properties": {"a>b": {"type": "string"}}})", "f: $: the parameter \"a>b\" has a name"},
      {R"({"type": "object", "properties": {"a": {"not": {}}}})", "f: $.properties.a: \"not\" is not supported"},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})", "f: $: \"additionalProperties\" alone"},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}})",
       "f: $: \"dependentRequired\" is not supported"},
      {R"({"type": "object", "properties": {"a": {}}, "allOf": [{"unevaluatedProperties": false}]})",
       "f: $: \"unevaluatedProperties\" is not supported"},
      {R"({"type": "object", "not": {}})", "f: $: \"not\" is not supported"},
      {R"({"type": "object", "minProperties": 1, "properties": {"a": {}}})", "f: $: \"minProperties\" that asks"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(Takes(spelling.Make(spelling.Spec({{"f", c.parameters}})), free)) << c.parameters;
    EXPECT_THAT(std::string(GrammarOfCalls(spelling.Spec({{"f", c.parameters}}, /*strict=*/true)).status().message()),
                HasSubstr(c.why));
  }
  EXPECT_TRUE(Takes(spelling.Make(spelling.Spec({{"f", "{}"}}, /*strict=*/true)), free)) << "any object is one";
}

}  // namespace
}  // namespace switchyard::server
