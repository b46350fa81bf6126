// JSON schemas against what the validator jsonschema says (tests/golden/constraint), and hostile ones.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/constraint/constraint_compiler.h"
#include "server/constraint/json_schema.h"
#include "tests/server/constraint/walks.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

grammar::AutomatonTotals& Totals() {
  static grammar::AutomatonTotals totals;
  return totals;
}

// The walks were made by this code, and the validator found each of them valid; so a walk that differs needs a new look
// by it: tests/golden/constraint/make.py.
TEST(Golden, WalksAreValidAndValuesAreTaken) {
  const auto vocabulary = WalkVocabulary();
  std::ifstream file("tests/golden/constraint/cases.jsonl");
  int schemas = 0, compiled = 0;
  for (std::string line; std::getline(file, line); ++schemas) {
    const nlohmann::json c = nlohmann::json::parse(line);
    const auto schema = c["schema"].get<std::string>();
    auto grammar = GrammarOfSchema(schema);
    EXPECT_EQ(grammar.ok() ? std::string() : std::string(grammar.status().message()), c.value("error", "")) << schema;
    if (!grammar.ok()) continue;
    ++compiled;
    const auto automaton = std::make_shared<grammar::Automaton>(*std::move(grammar), vocabulary, &Totals());
    for (size_t i = 0; i < c["walks"].size(); ++i) {
      const auto text = Walk(automaton, i);
      ASSERT_TRUE(text.ok()) << schema << " " << text.status();
      EXPECT_EQ(*text, c["walks"][i].get<std::string>()) << schema;
    }
    for (const auto& text : c["valid"]) EXPECT_TRUE(Takes(automaton, text.get<std::string>())) << schema << " " << text;
    for (const auto& text : c["invalid"])
      EXPECT_FALSE(Takes(automaton, text.get<std::string>())) << schema << " " << text;
  }
  EXPECT_GE(schemas, 140);
  EXPECT_GE(compiled, 125);
}

std::string FaultOf(absl::string_view schema) { return std::string(GrammarOfSchema(schema).status().message()); }

TEST(Schema, FaultsSayWhere) {
  EXPECT_THAT(FaultOf(R"({"properties": {"a": {"items": {"not": {}}}}})"),
              testing::AllOf(HasSubstr("$.properties.a.items: "), HasSubstr("\"not\"")));
  EXPECT_THAT(FaultOf(R"({"anyOf": [{}, {"contains": 1}]})"), HasSubstr("$.anyOf[1]: \"contains\""));
  EXPECT_THAT(FaultOf(R"({"$defs": {"x": {"if": {}}}, "$ref": "#/$defs/x"})"), HasSubstr("#/$defs/x: \"if\""));
  EXPECT_THAT(FaultOf("{"), HasSubstr("is no schema"));
  EXPECT_THAT(FaultOf("7"), HasSubstr("$: a schema must be"));
}

TEST(Schema, FormatsThatJsonSchemaDoesNotDefineAreNotes) {
  EXPECT_EQ(FaultOf(R"({"type": "string", "format": "path"})"), "");
  EXPECT_EQ(FaultOf(R"({"type": "string", "format": "password", "pattern": "^a+$"})"), "");
  EXPECT_NE(FaultOf(R"({"type": "string", "format": "iri"})"), "");
}

TEST(Schema, HostileOnesAreRefused) {
  std::string deep, many = R"({"allOf": [)", wide = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 1000; ++i) deep += R"({"items":)";
  EXPECT_THAT(FaultOf(deep + "{}" + std::string(1000, '}')), HasSubstr("nested"));
  for (int i = 0; i < 400; ++i)
    absl::StrAppend(&many, i ? "," : "", R"({"anyOf": [{"minLength": 1}, {"maxLength": 9}]})");
  EXPECT_NE(FaultOf(many + "]}"), "");
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&wide, i ? "," : "", "\"property", i, R"(": {"type": "string"})");
  wide += "}, \"anyOf\": [";
  for (int i = 0; i < 250; ++i) absl::StrAppend(&wide, i ? "," : "", R"({"maxProperties": )", 5000 + i, "}");
  EXPECT_NE(FaultOf(wide + "]}"), "");
  EXPECT_NE(FaultOf(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a", "minLength": 1}}})"), "");
  EXPECT_NE(FaultOf(R"({"allOf": [{"$ref": "#"}]})"), "");
  EXPECT_THAT(FaultOf(R"({"type": "string", "maxLength": 1000000})"), HasSubstr("needs more than"));
  EXPECT_THAT(FaultOf(R"({"type": "array", "items": {}, "minItems": 1e9})"), HasSubstr("needs more than"));
  EXPECT_THAT(FaultOf(R"({"type": "number", "multipleOf": 1e-300})"), HasSubstr("multipleOf"));
  EXPECT_THAT(FaultOf(std::string(kMaxSchemaBytes + 1, ' ')), HasSubstr("limit"));
}

TEST(Compiler, KeepsTheLatest) {
  const auto text = TinyText({});
  ConstraintCompiler compiler(text->tokenizer());
  const auto make = [&](int i) {
    auto made = compiler.Compile({.kind = ConstraintSpec::Kind::kRegex, .text = absl::StrCat("a{", i, "}")}, 64);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  };
  const auto first = make(1);
  EXPECT_EQ(make(1), first);
  for (int i = 2; i < 2 + static_cast<int>(ConstraintCompiler::kMaxKept); ++i) make(i);
  EXPECT_NE(make(1), first);
  EXPECT_GT(compiler.seconds(), 0);
  EXPECT_FALSE(compiler.Compile({.kind = ConstraintSpec::Kind::kChoice, .choices = {"a", ""}}, 64).ok());
  EXPECT_FALSE(compiler.Compile({.kind = ConstraintSpec::Kind::kGrammar, .text = "root ::= x"}, 64).ok());
}

}  // namespace
}  // namespace switchyard::server
