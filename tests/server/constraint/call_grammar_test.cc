// Calls of functions that an output must be, reasoning before what is constrained, and special tokens in both.
#include "server/constraint/call_grammar.h"

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

std::shared_ptr<grammar::Automaton> Make(absl::StatusOr<std::unique_ptr<const grammar::Grammar>> grammar) {
  static grammar::AutomatonTotals totals;
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return std::make_shared<grammar::Automaton>(*std::move(grammar), WalkVocabulary(), &totals);
}

CallSpec Call(const std::string& name, const std::string& parameters) {
  return {.name = name, .before = name + "\", \"arguments\":", .parameters = parameters, .behind = "}</c>"};
}

ConstraintSpec TwoFunctions() {
  ConstraintSpec spec = {.kind = ConstraintSpec::Kind::kCalls};
  spec.calls.push_back(
      Call("add", R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "default": {"$ref": "#/$defs/n"}},
                                       "required": ["a"], "$defs": {"n": {"type": "integer"}}})"));
  spec.calls.push_back(Call("say", R"({"type": "object", "properties": {"text": {"enum": ["hi", {"$ref": "#"}]}},
                                       "required": ["text"]})"));
  return spec;
}

TEST(Calls, FollowTheSchemaOfTheirFunction) {
  ConstraintSpec spec = TwoFunctions();
  const auto one = Make(GrammarOfCalls(spec));
  EXPECT_TRUE(Takes(one, R"(add", "arguments": {"a": 5}}</c>)"));
  EXPECT_TRUE(Takes(one, R"(add", "arguments": {"a": 5, "default": 6}}</c>)"));
  EXPECT_TRUE(Takes(one, R"(say", "arguments":{"text": "hi"}}</c>)"));
  EXPECT_TRUE(Takes(one, R"(say", "arguments":{"text": {"$ref":"#"}}}</c>)"));
  EXPECT_FALSE(Takes(one, R"(say", "arguments": {"a": 5}}</c>)"));
  EXPECT_FALSE(Takes(one, R"(add", "arguments": {"a": "5"}}</c>)"));
  EXPECT_FALSE(Takes(one, R"(sub", "arguments": {"a": 5}}</c>)"));
  EXPECT_FALSE(Takes(one, R"(add", "arguments": {"a": 5}}</c>,add", "arguments": {"a": 5}}</c>)"));

  spec.between = ",";
  spec.end = "]";
  const auto many = Make(GrammarOfCalls(spec));
  EXPECT_TRUE(Takes(many, R"(add", "arguments": {"a": 5}}</c>])"));
  EXPECT_TRUE(Takes(many, R"(add", "arguments": {"a": 5}}</c>,say", "arguments": {"text": "hi"}}</c>])"));
  EXPECT_FALSE(Takes(many, R"(add", "arguments": {"a": 5}}</c>)"));
}

TEST(Calls, ASchemaThatCannotBeHeldToIsAnyObjectUnlessStrict) {
  ConstraintSpec spec = {.kind = ConstraintSpec::Kind::kCalls};
  spec.calls.push_back(Call("f", R"({"type": "object", "not": {}})"));
  const auto any = Make(GrammarOfCalls(spec));
  EXPECT_TRUE(Takes(any, R"(f", "arguments": {"x": [1]}}</c>)"));
  EXPECT_FALSE(Takes(any, R"(f", "arguments": 7}</c>)"));
  spec.calls[0].is_strict = true;
  EXPECT_THAT(std::string(GrammarOfCalls(spec).status().message()), HasSubstr("f: $: \"not\""));
  spec.calls[0].parameters = "{}";
  EXPECT_FALSE(Takes(Make(GrammarOfCalls(spec)), R"(f", "arguments": 7}</c>)"));
}

// tool_choice "auto" with strict functions.
TEST(Calls, BehindFreeTextBeginWithTheirOpener) {
  ConstraintSpec spec = TwoFunctions();
  spec.between = ",";
  spec.opener = "<call>";
  spec.behind_opener = "\n";
  spec.not_in_text = {"<call>", "<function="};
  const auto run = Make(GrammarOfCalls(spec));
  for (const char* const text : {"", "No call, <b>é</b>.", "<", "<cal", "a <<call", "<functio", "\n\n"})
    EXPECT_TRUE(Takes(run, text)) << text;
  EXPECT_TRUE(Takes(run, R"(So: <<call>)"
                         "\n"
                         R"(add", "arguments": {"a": 5}}</c>)"));
  EXPECT_TRUE(Takes(run, R"(<call>)"
                         "\n"
                         R"(add", "arguments": {"a": 5}}</c>,say", "arguments": {"text": "hi"}}</c>)"));
  for (const char* const text : {"<call>", "a<call>\n", "<call>add", "a <function=add>", "<<function="})
    EXPECT_FALSE(Takes(run, text)) << text;
  EXPECT_FALSE(Takes(run, R"(<call>)"
                          "\n"
                          R"(add", "arguments": {"a": "5"}}</c>)"));
  EXPECT_FALSE(Takes(run, R"(<call>)"
                          "\n"
                          R"(add", "arguments": {"a": 5}}</c> and so on)"));
}

// A marker that is a special token opens a call; its name in other characters is in no text, as readers look for it.
TEST(Calls, AnOpenerThatIsASpecialTokenIsNotSpelledOut) {
  ConstraintSpec spec = TwoFunctions();
  spec.opener = "\xFF<call>\xFF";
  spec.not_in_text = {"<call>"};
  const auto run = Make(GrammarOfCalls(spec));
  EXPECT_TRUE(Takes(run,
                    "a<ca\xFF<call>\xFF"
                    R"(add", "arguments": {"a": 5}}</c>)"));
  EXPECT_TRUE(Takes(run, "a<cal"));
  EXPECT_FALSE(Takes(run, "a<call>"));
  EXPECT_FALSE(Takes(run, R"(<call>add", "arguments": {"a": 5}}</c>)"));
}

TEST(Reasoning, EndsWithItsFirstMarker) {
  const auto inner = GrammarOfSchema(R"({"type": "boolean"})");
  ASSERT_TRUE(inner.ok());
  const auto open = Make(BehindFreeText({.close = "</think>"}, **inner));
  EXPECT_TRUE(Takes(open, "</think>true"));
  EXPECT_TRUE(Takes(open, "Hm, wéather </thin </t</think>\n\nfalse"));
  EXPECT_TRUE(Takes(open, "<</think>true"));
  EXPECT_TRUE(Takes(open, "</thi</think>true"));
  EXPECT_FALSE(Takes(open, "true"));
  EXPECT_FALSE(Takes(open, "a</think>b</think>true"));
  EXPECT_FALSE(Takes(open, "a</think>\n\n\n\n\ntrue"));
  const auto may = Make(BehindFreeText({.open = "<think>", .close = "</think>", .may_be = true}, **inner));
  EXPECT_TRUE(Takes(may, "true"));
  EXPECT_TRUE(Takes(may, "<think>a</think> true"));
  EXPECT_FALSE(Takes(may, "a</think>true"));
  EXPECT_FALSE(Takes(may, "<think>true"));
  const auto without = Make(BehindFreeText({.close = "</think>", .without = {"<call>"}}, **inner));
  EXPECT_TRUE(Takes(without, "a <call </think>true"));
  EXPECT_FALSE(Takes(without, "a <call></think>true"));
}

// Every prefix of the marker that begins again inside of it.
TEST(Reasoning, FindsMarkersThatRepeatThemselves) {
  const auto inner = GrammarOfSchema(R"({"type": "boolean"})");
  ASSERT_TRUE(inner.ok());
  const auto run = Make(BehindFreeText({.close = "aabaa"}, **inner));
  for (const char* const text : {"aabaa", "aaabaa", "aabaabaa", "abaabaa", "aabbaabaa", "éaabaa"})
    EXPECT_EQ(Takes(run, std::string(text) + "true"), std::string(text).find("aabaa") + 5 == std::string(text).size())
        << text;
}

TEST(Compiler, SpecialTokensAreWholeOrNot) {
  const auto text = TinyText({});
  const tokenizer::Tokenizer& tokenizer = *text->tokenizer();
  EXPECT_EQ(MarkSpecialTokens(tokenizer, "a<<|end|>[b]<|x|>"), "a<\xFF<|end|>\xFF[b]<|x|>");
  ConstraintCompiler compiler(&tokenizer);
  ConstraintSpec spec = {.kind = ConstraintSpec::Kind::kChoice, .choices = {"a"}};
  spec.reasoning.close = MarkSpecialTokens(tokenizer, "<|end|>");
  const auto made = compiler.Compile(spec, kFar);
  ASSERT_TRUE(made.ok()) << made.status();
  grammar::Matcher matcher(*made);
  const auto mask = matcher.NextMask();
  ASSERT_TRUE(mask.ok());
  constexpr int32_t kNoText = 0xF8;  // bytes from here on are in no UTF-8; kBos is another special token
  for (int32_t id = 0; id < kFar; ++id) EXPECT_EQ(Allows(**mask, id), id < kNoText || id == kEnd) << id;
  ASSERT_TRUE(matcher.Accept(kEnd).ok());
  EXPECT_FALSE(Allows(**matcher.NextMask(), kEnd));
}

}  // namespace
}  // namespace switchyard::server
