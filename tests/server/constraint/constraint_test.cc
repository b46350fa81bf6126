// JSON schemas against what the validator jsonschema says (tests/golden/constraint), and hostile ones.
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

std::string Names(const char* begin, int count) {
  std::string names;
  for (int i = 0; i < count; ++i) absl::StrAppend(&names, i ? ",\"" : "\"", begin, i, "\"");
  return names;
}

TEST(Schema, RequiredNamesHaveALimit) {
  const auto required = [](const std::string& names) { return absl::StrCat(R"({"required": [)", names, "]}"); };
  EXPECT_EQ(FaultOf(required(Names("n", 1000))), "");
  EXPECT_EQ(FaultOf(required(Names("n", 5001))), "$: \"required\" has 5001 names, limit 5000");
  EXPECT_EQ(FaultOf(required(absl::StrCat("\"", std::string(200'000, 'n'), "\""))),
            "$: \"required\" has a name of 200000 bytes, limit 1024");
  EXPECT_EQ(FaultOf(absl::StrCat(R"({"allOf": [)", required(Names("n", 3000)), ",", required(Names("m", 3000)), "]}")),
            "$: \"required\" has 6000 names, limit 5000");
}

// Each part was as long as what it refers to, or as the other's additional properties, and no limit counted it.
TEST(Schema, CopiesOfWhatIsReferredToHaveALimit) {
  const auto repeated = [](const std::string& part, int times) {
    std::string list = part;
    for (int i = 1; i < times; ++i) absl::StrAppend(&list, ",", part);
    return list;
  };
  const auto properties = [](const std::string& schema, int count) {
    std::string members;
    for (int i = 0; i < count; ++i) absl::StrAppend(&members, i ? "," : "", "\"p", i, "\":", schema);
    return absl::StrCat("\"properties\": {", members, "}");
  };
  const std::string values = absl::StrCat(R"("a": {"enum": [)", repeated("1", 40'000), "]}");
  const std::string list = absl::StrCat(R"("list": {"allOf": [)", repeated(R"({"$ref": "#/a"})", 190), "]}");
  constexpr char kFault[] = "takes more than 16777216 bytes to join what stands beside $ref, allOf, anyOf and oneOf";
  EXPECT_THAT(FaultOf(absl::StrCat("{", values, ",", properties(R"({"$ref": "#/a", "x": 1})", 1600), "}")),
              HasSubstr(kFault));
  EXPECT_THAT(
      FaultOf(absl::StrCat("{", values, ",", list, ",", properties(R"({"$ref": "#/list", "x": 1})", 1000), "}")),
      HasSubstr(kFault));
  EXPECT_THAT(FaultOf(absl::StrCat("{\"allOf\": [{", properties("true", 4900),
                                   R"(}, {"additionalProperties": {"enum": [)", repeated("1", 40'000), "]}}]}")),
              HasSubstr(kFault));
  EXPECT_EQ(FaultOf(absl::StrCat("{", values, ",", properties(R"({"$ref": "#/a", "x": 1})", 40), "}")), "");
  std::string parts;  // each with what was joined before it
  for (int i = 0; i < 150; ++i) {
    absl::StrAppend(&parts, i ? "," : "", R"({"properties": {"p)", i, R"(": {"description": ")", std::string(1100, 'x'),
                    "\"}}}");
  }
  EXPECT_EQ(FaultOf(absl::StrCat(R"({"allOf": [)", parts, "]}")), "") << "honest";
  std::string branches;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&branches, i ? "," : "", R"({"const": )", i, "}");
  EXPECT_EQ(FaultOf(absl::StrCat(R"({"$defs": {)", values, R"(}, "oneOf": [)", branches, "]}")), "") << "not copied";
}

// Each of the patterns was made into an automaton for each of the names.
TEST(Schema, PatternsOfNamesHaveALimit) {
  std::string many, large;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&many, i ? "," : "", "\"^x", i, "$\":{}");
  for (int i = 0; i < 20; ++i) absl::StrAppend(&large, i ? "," : "", "\"^a{", 49'000 + i, "}$\":{}");
  const auto fault = [](const std::string& patterns, int num_names) {
    return FaultOf(
        absl::StrCat(R"({"patternProperties": {)", patterns, R"(}, "required": [)", Names("n", num_names), "]}"));
  };
  EXPECT_THAT(fault(many, 3000), HasSubstr("$: \"patternProperties\" of 2000 patterns need more than 2000000 steps"));
  EXPECT_THAT(fault(large, 1), HasSubstr("$: \"patternProperties\" of 20 patterns need more than 2000000 steps"));
  EXPECT_EQ(fault(R"("^n":{"type":"null"},"0$":{"type":"null"})", 200), "");
}

// Every two branches are compared, and what both need in each of them.
TEST(Schema, BranchesThatAreHardToTellApartAreRefused) {
  std::string deep = R"({"type": "string"})", branches;
  for (int i = 0; i < 28; ++i)
    deep = absl::StrCat(R"({"type":"object","properties":{"x":)", deep, R"(},"required":["x"]})");
  EXPECT_THAT(FaultOf(absl::StrCat(R"({"oneOf": [)", deep, ",", deep, "]}")), HasSubstr("may both be valid"));
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&branches, i ? "," : "", R"({"allOf": [{"$ref": "#/$defs/all"}, {"properties": {"z": {"const": )",
                    i, R"(}}, "required": ["z"]}]})");
  }
  const auto fault = [&](int num_names) {
    return FaultOf(absl::StrCat(R"({"$defs": {"all": {"type": "object", "required": [)", Names("n", num_names),
                                R"(]}}, "oneOf": [)", branches, "]}"));
  };
  EXPECT_EQ(fault(2), "");
  EXPECT_THAT(fault(1000), HasSubstr("$: \"oneOf\" of 200 branches takes more than 20000000 comparisons"));
}

TEST(Schema, LongListsOfValuesAndTypesAreJoined) {
  const auto expect = [](const std::string& schema, const std::vector<std::string>& yes,
                         const std::vector<std::string>& no) {
    auto grammar = GrammarOfSchema(schema);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const auto automaton = std::make_shared<grammar::Automaton>(*std::move(grammar), WalkVocabulary(), &Totals());
    for (const std::string& text : yes) EXPECT_TRUE(Takes(automaton, text)) << text;
    for (const std::string& text : no) EXPECT_FALSE(Takes(automaton, text)) << text;
  };
  const auto joined = [](const char* keyword, const std::string& a, const std::string& b) {
    return absl::StrCat("{\"", keyword, "\": [", a, "], \"allOf\": [{\"", keyword, "\": [", b, "]}]}");
  };
  expect(joined("enum", R"(1, "a", [1, {"b": 2}], true, {"c": 3})", R"({"d": 3}, true, [1.0, {"b": 2}], 1.0, 0)"),
         {"1", "[1,{\"b\":2}]", "true"}, {"\"a\"", "0", "{\"c\":3}", "{\"d\":3}"});
  std::string low, high, nulls, notes;
  for (int i = 0; i < 20'000; ++i) {
    absl::StrAppend(&low, i ? "," : "", i);
    absl::StrAppend(&high, i ? "," : "", 39'998 - i);
    if (i < 15'000) absl::StrAppend(&nulls, i ? "," : "", "\"null\"");
    if (i < 4'000) absl::StrAppend(&notes, "\"note", i, "\":0,");
  }
  expect(joined("enum", low, high), {"19999"}, {"19998", "20000"});
  expect(joined("type", nulls + ",\"string\"", nulls), {"null"}, {"0", "\"a\""});
  expect(joined("type", R"("integer", "null", "string")", R"("string", "number")"), {"1", "\"a\""}, {"1.5", "null"});
  expect(absl::StrCat("{", notes, R"("maximum": 5, "enum": [)", low, "]}"), {"5"}, {"6"});
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
