// Hostile templates and inputs: each soon ends in an error that names its place; none crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/text/chat_template/chat_template.h"

namespace switchyard::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source, const Json& variables = Json::object(),
                                   const ChatTemplateLimits& limits = {}) {
  const auto parsed = ChatTemplate::Parse(source, limits);
  if (!parsed.ok()) return parsed.status();
  auto chat = parsed->RenderChat(variables, {absl::UnixEpoch(), absl::UTCTimeZone()});
  if (!chat.ok()) return chat.status();
  return std::move(chat->text);
}

void ExpectError(const std::string& source, absl::StatusCode code, const std::string& message,
                 const ChatTemplateLimits& limits = {}) {
  const auto got = Render(source, Json::object(), limits);
  ASSERT_FALSE(got.ok()) << source.substr(0, 200) << "\n rendered " << got->size() << " bytes";
  EXPECT_EQ(got.status().code(), code) << source.substr(0, 200) << "\n " << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("chat template: ")) << source.substr(0, 200);
  EXPECT_THAT(std::string(got.status().message()), HasSubstr(message)) << source.substr(0, 200);
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

TEST(ChatTemplateErrors, NameTheLine) {
  ExpectError("a\nb\n{{ 1 + }}", kInvalid, "(line 3)");
  ExpectError("{% if x %}\n\n{% endfor %}", kInvalid, "unknown tag 'endfor' (line 3)");
  ExpectError("a\n{% for x in y %}\nb", kInvalid, "the template ends before 'endfor' or 'else'");
  ExpectError("a\n{# never", kInvalid, "(line 2)");
  ExpectError("\n\n{{ 'never }}", kInvalid, "the string has no end (line 3)");
  ExpectError("{% include 'x' %}", kInvalid, "a chat template stands alone (line 1)");
  ExpectError("\n{{ x.y }}", kInvalid, "'x' is undefined (line 2)");
  ExpectError("{% for x in [1] %}\n  {{ x.upper() }}\n{% endfor %}", kInvalid,
              "'int object' has no attribute 'upper' (line 2)");
  ExpectError("\n{{ raise_exception('only\nusers') }}", kInvalid, "chat template: only\nusers (line 2)");
  ExpectError("{{ [].append(1) }}", kInvalid, "access to attribute 'append' of 'list' object is unsafe (line 1)");
  ExpectError("{{ 9223372036854775807 + 1 }}", kInvalid, "does not fit 64 bits");
  ExpectError("{{ 92233720368547758070 }}", kInvalid, "does not fit 64 bits");
}

TEST(ChatTemplateErrors, VariablesMustBeAnObject) {
  EXPECT_EQ(Render("x", Json::array()).status().code(), kInvalid);
  EXPECT_EQ(Render("x", {{"n", 18446744073709551615u}}).status().code(), kInvalid);
}

TEST(ChatTemplateLimitsTest, NestingInTheSource) {
  constexpr int kDeep = 100000;
  for (const char* open :
       {"(", "[", "{1:", "not ", "-", "f(", "x[", "a if b else ", "x|f(", "x is g(", "{'a':", "(1,"}) {
    ExpectError("{{ " + Repeat(open, kDeep) + "1 }}", kInvalid, "");
  }
  ExpectError("{{ " + Repeat("(", kDeep) + "1" + Repeat(")", kDeep) + " }}", kInvalid, "nested more than 200 deep");
  ExpectError("{{ 1" + Repeat("+1", kDeep) + " }}", kInvalid, "nested more than 200 deep");
  ExpectError("{{ 1" + Repeat("|string", kDeep) + " }}", kInvalid, "nested more than 200 deep");
  ExpectError("{{ x" + Repeat(".x", kDeep) + " }}", kInvalid, "nested more than 200 deep");
  ExpectError("{{ 1" + Repeat(" if 1", kDeep) + " }}", kInvalid, "nested more than 200 deep");
  ExpectError(Repeat("{% if 1 %}", kDeep), kInvalid, "nested more than 200 deep");
  ExpectError(Repeat("{% for x in y %}", kDeep / 2), kInvalid, "nested more than 200 deep");
  ExpectError(Repeat("{% macro m() %}", kDeep / 2), kInvalid, "nested more than 200 deep");
  ExpectError("{% set " + Repeat("(", kDeep) + "x" + Repeat(")", kDeep) + " = 1 %}", kInvalid,
              "nested more than 200 deep");
  ExpectError("{% filter upper" + Repeat("|upper", kDeep) + " %}{% endfilter %}", kInvalid,
              "nested more than 200 deep");
  ExpectError(std::string(2 << 20, 'x'), kInvalid, "the limit is 1048576");
}

TEST(ChatTemplateLimitsTest, LongButFlatIsFine) {
  EXPECT_TRUE(Render("{{ 1" + Repeat("~1", 10000) + " }}").ok());
  EXPECT_TRUE(Render("{{ [1" + Repeat(",1", 10000) + "] }}").ok());
  EXPECT_TRUE(Render("{% if 0 %}" + Repeat("{% elif 0 %}", 10000) + "{% endif %}").ok());
  EXPECT_TRUE(Render("{{ " + Repeat("(", 60) + "1" + Repeat(")", 60) + " }}").ok());
}

TEST(ChatTemplateLimitsTest, Recursion) {
  ExpectError("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kExhausted, "nested more than 400 deep");
  ExpectError("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", kExhausted,
              "deep");
  ExpectError("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}", kExhausted, "deep");
  ExpectError("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", kExhausted, "deep");
  ExpectError("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}", kExhausted,
              "nested more than 100 deep");
  ExpectError("{% set ns = namespace(x={}) %}{% for i in range(1000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
              kExhausted, "nested more than 100 deep");
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(Render("{{ x }}", {{"x", deep}}).status().code(), kExhausted);
}

TEST(ChatTemplateLimitsTest, DeepMacrosWorkWithinTheLimit) {
  const auto got = Render("{% macro m(n) %}{% if n %}{{ n ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(*got, HasSubstr("40393837"));
}

TEST(ChatTemplateLimitsTest, Steps) {
  const std::string loops = "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}";
  ExpectError(loops, kExhausted, "");
  ChatTemplateLimits few;
  few.max_steps = 1000;
  ExpectError("\n{% for a in range(900) %}x{% endfor %}", kExhausted, "more than 1000 steps (line 2)", few);
}

TEST(ChatTemplateLimitsTest, BigValues) {
  const char* kBombs[] = {
      "{{ 'a' * 1000000000 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [1] * 1000000000 }}",
      "{{ ([1, 2] * 9223372036854775807) | length }}",
      "{{ range(1000000000000) }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{{ 'a'.ljust(1000000000) }}",
      "{{ 'a'.center(9223372036854775807) }}",
      "{{ '1'.zfill(1000000000000) }}",
      "{{ 'a' | center(1000000000000) }}",
      "{{ 'a' | indent(1000000000000) }}",
      "{{ [1] | batch(1000000000000, 0) | list }}",
      "{{ [1] | slice(1000000000000) | list }}",
      "{{ [1] | tojson(indent=1000000000000) }}",
      "{{ '%1000000000000d' % 1 }}",
      "{{ '%1000000000000s' % 'a' }}",
      "{{ '{:1000000000000}'.format('a') }}",
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='aa') %}{% for i in range(100) %}{% set ns.s = ns.s | replace('a', 'aaaaaaaa') %}{% "
      "endfor %}",
      "{% set ns = namespace(s='aa') %}{% for i in range(100) %}{% set ns.s = ns.s.join(ns.s) %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      // Small in memory, but endless when printed, compared, hashed or dumped.
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | "
      "tojson }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, "
      "ns.m] "
      "%}{% endfor %}{{ ns.l == ns.m }}",
      "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
      "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if x.count('b') %}{% endif %}{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(1000) %}{% set x = ['a'.upper] %}{% endfor %}{% endfor %}",
  };
  for (const char* bomb : kBombs) ExpectError(bomb, kExhausted, "");
  ExpectError("{{ '%.1000000000d' % 1 }}", kInvalid, "the precision of a number is at most 100");
  ExpectError(
      "{% set ns = namespace(t=(1,)) %}{% for i in range(90) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} "
      "}}",
      kInvalid, "unhashable");
  ExpectError("{{ 10 ** 1000000000 }}", kInvalid, "does not fit 64 bits");
  ExpectError("{{ strftime_now('%c' * 10000) }}", kInvalid, "more than 1024 bytes");
}

// Each of these reads a megabyte, or more than fifty thousand items, and returns almost nothing.  Reading must be
// charged, or a template could occupy a thread for hours: a thousand of them are more than a million steps.
TEST(ChatTemplateLimitsTest, WhatIsLookedAtIsCharged) {
  const std::string setup =
      "{% set blank = ' ' * 1000000 %}{% set text = 'ab' * 500000 %}{% set zeros = '0' * 1000000 %}"
      "{% set items = [''] * 100000 %}{% set pairs = {'a': 1, text: 2} %}{% set ns = namespace() %}"
      "{% set ns.me = ns %}{% set path = 'me.' * 100000 ~ 'me' %}{% set other = 'ab' * 500000 %}"
      "{% set fields = '%%' * 50000 %}{% set braces = '{:d}' * 50000 %}{% set ones = [1] * 50000 %}";
  const char* kExpressions[] = {
      "blank.strip()",
      "blank.strip(' a')",
      "text.lstrip('ab')",
      "text.rstrip(text)",
      "blank | trim",
      "blank | trim(' ')",
      "zeros | int",
      "zeros | float",
      "text.title()",
      "text.islower()",
      "text is lower",
      "text.isalpha()",
      "text.startswith('b', 1)",
      "text.endswith(other)",
      "text.removeprefix(text)",
      "text.count('c', 0, 5)",
      "text.count('a')",
      "text | replace('ab', '')",
      "'a'.rfind(text)",
      "'a'.rpartition(text)",
      "text | wordcount",
      "text | truncate(3)",
      "blank | striptags",
      "''.join(items)",
      "items | join",
      "'%.1s' % text",
      "fields % ()",
      "braces.format(*ones)",
      "{}[text]",
      "pairs.get(text)",
      "text in pairs",
      "{text: 1} | length",
      "[text] | unique | list",
      "[text] | max | length",
      "[ns] | map(attribute=path) | first is defined",
      "dict(pairs, **{text: 1}) | length",
      "namespace(pairs) is defined",
      "text is sameas(other)",
      "text is filter",
      "text is test",
      "text | default(1) | urlencode | length",
  };
  ChatTemplateLimits enough, tight;
  enough.max_steps = 20'000'000;
  tight.max_steps = 1'000'000;
  for (const char* expression : kExpressions) {
    // Only the truth value is used, so nothing is copied or written.
    const std::string once = setup + "{% if " + expression + " %}{% endif %}";
    EXPECT_TRUE(Render(once, Json::object(), enough).ok()) << expression << ": " << Render(once).status();
    const std::string often = setup + "{% for i in range(1000) %}{% if " + expression + " %}{% endif %}{% endfor %}";
    EXPECT_EQ(Render(often, Json::object(), tight).status().code(), kExhausted) << expression;
  }
}

// Reading text character by character takes several times as long as copying it, and so costs more.
TEST(ChatTemplateLimitsTest, CharactersCostMoreThanBytes) {
  ChatTemplateLimits limits;
  limits.max_steps = 1'500'000;
  const std::string setup = "{% set text = 'ab' * 500000 %}";
  for (const char* expression : {"text[999999]", "text[:1]", "text.title()", "text | title", "text | upper", "text[9:]",
                                 "text.isalpha()", "text is lower", "text | wordcount", "text | tojson"}) {
    const std::string often = setup + "{% for i in range(40) %}{% if " + expression + " %}{% endif %}{% endfor %}";
    EXPECT_EQ(Render(often, Json::object(), limits).status().code(), kExhausted) << expression;
  }
}

TEST(ChatTemplateLimitsTest, StrippingIsLinearInBothTexts) {
  // Quadratic stripping would take days.
  EXPECT_EQ(*Render("{% set chars = 'é' * 1000000 ~ 'b' %}{{ ('b' * 2000000 ~ 'c').strip(chars) }}"), "c");
}

TEST(ChatTemplateLimitsTest, TheCallerEndsARenderSoon) {
  // Counts calls, not time: each comes at most a few thousand steps after the one before.
  int asked = 0;
  ChatTemplateClock clock = {absl::UnixEpoch(), absl::UTCTimeZone()};
  clock.must_end = [&asked] {
    return ++asked < 3 ? absl::OkStatus() : absl::DeadlineExceededError("the deadline has passed");
  };
  for (const char* source : {"{% for a in range(100000) %}x{% endfor %}",
                             "\n{% set s = ' ' * 60000 %}{% for i in range(99) %}{{ s|int }}"
                             "{% endfor %}"}) {
    asked = 0;
    const auto got = ChatTemplate::Parse(source)->RenderChat(Json::object(), clock);
    EXPECT_EQ(got.status().code(), absl::StatusCode::kDeadlineExceeded) << got.status();
    EXPECT_THAT(std::string(got.status().message()), HasSubstr("chat template: the deadline has passed (line "));
    EXPECT_EQ(asked, 3) << "an error is final";
  }
}

TEST(ChatTemplateLimitsTest, FourMegabytesOfMessagesAreNoProblem) {
  // The work of templates like Qwen3's on each message, ten times.
  Json messages = Json::array();
  for (int i = 0; i < 16; ++i) messages.push_back({{"role", "user"}, {"content", std::string(256 << 10, 'x')}});
  const auto got = Render(
      "{% for m in messages[::-1] %}{% if m.content.startswith('<t>') and m.content.endswith('</t>') %}{% endif %}"
      "{% endfor %}{% for m in messages %}{% set content = m.content %}{% if '</think>' in content %}{% endif %}"
      "{% for i in range(4) %}{% set content = content.split('</think>')[-1].lstrip('\n').rstrip('\n') | trim %}"
      "{% endfor %}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}{{ m.content | tojson }}"
      "{% endfor %}",
      {{"messages", messages}});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_GT(got->size(), size_t{8} << 20);
}

TEST(ChatTemplateLimitsTest, SearchIsLinear) {
  // Quadratic search would take minutes here.
  const std::string setup =
      "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 ~ 'b' %}{% set c = 'b' ~ 'a' * 2000000 %}";
  EXPECT_EQ(
      *Render(setup + "{{ b in a }} {{ a.rfind(c) }} {{ a.find(b) }} {{ a.rsplit(c) | length }} {{ a.count(b) }}"),
      "False -1 -1 1 0");
}

TEST(ChatTemplateLimitsTest, CyclesThroughNamespacesNeitherHangNorLeak) {
  const auto got = Render(
      "{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ ns.me.me is defined }}{% endmacro %}{% set ns.m "
      "= m %}"
      "{% for x in [1, 2] if true recursive %}{% set ns.loop = loop %}{% set ns.l = [ns, loop] %}{% endfor %}{{ ns.m() "
      "}}"
      "{{ ns.loop.last }}{{ ns == ns.me }}");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, "TrueTrueTrue");
}

TEST(ChatTemplateLimitsTest, InvalidUtf8IsKept) {
  const std::string bad = "a\xff\xc3";
  const auto got = Render("{{ x }}{{ x | length }}{{ x[::-1] | length }}{{ x | upper | length }}", {{"x", bad}});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, bad + "333");
}

}  // namespace
}  // namespace switchyard::text
