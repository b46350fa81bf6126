// Formats whose arguments are JSON: Hermes, Mistral, Llama, DeepSeek, Kimi.
#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

TEST(OutputParser, Hermes) {
  ExpectCases(
      Format("hermes"),
      {{"", ""},
       {"Hello, world", "C(Hello, world)"},
       {" \n", "C( \n)"},
       {"a <b> <tool <tool_call", "C(a <b> <tool <tool_call)"},
       {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        "0:get_weather({\"city\": \"Paris\"})."},
       // Behind it nothing but the end, as the end token is not shown.
       {"<tool_call>{\"name\":\"now\",\"arguments\":{}}", "0:now({})."},
       {"Let me see.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
        "\"add\", \"arguments\": {\"a\": 1, \"b\": -2.5e3}}\n</tool_call>\n",
        "C(Let me see.\n)0:now({}).1:add({\"a\": 1, \"b\": -2.5e3})."},
       {"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n\nDone. </tool_call>",
        "0:now({}).C(\n\nDone. </tool_call>)"},
       // Members in any order; arguments that are none, null, or a string.
       {"<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"add\"}</tool_call>", "0:add({\"a\": [1, {}]})."},
       {"<tool_call>{\"name\": \"now\"}</tool_call>", "0:now({})."},
       {"<tool_call>{\"id\": 7, \"name\": \"now\", \"x\": [true, 1], \"arguments\": null}</tool_call>", "0:now({})."},
       {"<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "0:add({\"a\": 1})."},
       {"<tool_call>{\"name\": \"n\\u006fw\", \"arguments\": {}}</tool_call>", "0:now({})."},
       // What is in strings is no marker and no JSON.
       {R"(<tool_call>{"name": "add", "arguments": {"s": "a\"}}</tool_call>{\\", "t": {"u": "\u00e9\n"}}}</tool_call>)",
        R"(0:add({"s": "a\"}}</tool_call>{\\", "t": {"u": "\u00e9\n"}}).)"},
       {"<tool_call>{\"name\": \"add\", \"arguments\": {\"s\": \"日本 🙂\"}}</tool_call>",
        "0:add({\"s\": \"日本 🙂\"})."},
       // A control character within a string.
       {"<tool_call>{\"name\": \"add\", \"arguments\": {\"s\": \"a\n\tb\x01\"}}</tool_call>",
        "0:add({\"s\": \"a\\n\\tb\\u0001\"})."},
       // A function that the request does not have is the client's to refuse.
       {"<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", "0:other({})."}});
}

TEST(OutputParser, BrokenHermes) {
  ExpectCases(
      Format("hermes"),
      {{"<tool_call>no JSON</tool_call>", "C(<tool_call>no JSON</tool_call>)"},
       {"<tool_call>{\"name\": 5}</tool_call> x", "C(<tool_call>{\"name\": 5}</tool_call> x)"},
       {"<tool_call>{\"arguments\": {}}</tool_call>", "C(<tool_call>{\"arguments\": {}}</tool_call>)"},
       {"<tool_call>{'name': 'now'}", "C(<tool_call>{'name': 'now'})"},
       {"<tool_call>[1]", "C(<tool_call>[1])"},
       {"<tool_call>{\"name\": \"now\", \"arguments\": [1]}", "C(<tool_call>{\"name\": \"now\", \"arguments\": [1]})"},
       // The first is none; the second is one, also where the first was left open.
       {"<tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", "C(<tool_call>\n)0:now({})."},
       {"<tool_call>{\"name\": \"now\", \"arguments\": {}}\n<tool_call>{\"name\": \"add\", \"arguments\": {}}",
        "0:now({}).1:add({})."},
       // Broken within the arguments: streamed, the call has begun.
       {"<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 01}}</tool_call>.",
        "0:add({\"a\": 0)!C(1}}</tool_call>.)",
        "C(<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 01}}</tool_call>.)"},
       {"x<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"Par", "C(x)0:add({\"a\": \"Par)!",
        "C(x<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"Par)"},
       {"<tool_call>{\"name\": \"add\", \"arguments\": {}, \"name\": \"now\"}</tool_call>",
        "0:add({})!C(, \"name\": \"now\"}</tool_call>)",
        "C(<tool_call>{\"name\": \"add\", \"arguments\": {}, \"name\": \"now\"}</tool_call>)"},
       {"<tool_call>{\"name\": \"add\", \"argu", "C(<tool_call>{\"name\": \"add\", \"argu)"}});
}

TEST(OutputParser, Mistral) {
  for (const char* name : {"mistral", "mistral_list"}) {
    ExpectCases(
        Format(name),
        {{"Bonjour [TOOL] [1, 2]", "C(Bonjour [TOOL] [1, 2])"},
         {"[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": [1]}}, {\"name\": \"now\", \"arguments\": {}, "
          "\"id\": "
          "\"abc\"}] ",
          "0:add({\"a\": [1]}).1:now({})."},
         {"[TOOL_CALLS][{\"id\": \"Xy1\", \"name\": \"add\", \"arguments\": {}}]\n\nOk", "0:add#Xy1({}).C(\n\nOk)"},
         {"[TOOL_CALLS]add{\"a\": 1}[TOOL_CALLS]now{}", "0:add({\"a\": 1}).1:now({})."},
         {"Text[TOOL_CALLS]add[ARGS]{\"a\": 1}", "C(Text)0:add({\"a\": 1})."},
         {"[TOOL_CALLS]add[CALL_ID]q1w2[ARGS]{\"a\": \"[TOOL_CALLS]\"}", "0:add#q1w2({\"a\": \"[TOOL_CALLS]\"})."},
         {"[TOOL_CALLS] nothing to call", "C([TOOL_CALLS] nothing to call)"},
         {"[TOOL_CALLS]add[ARGUMENTS]{}", "C([TOOL_CALLS]add[ARGUMENTS]{})"},
         {"[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, oops]", "0:now({}).C(, oops])"},
         {"[TOOL_CALLS]add[TOOL_CALLS]now{}", "C([TOOL_CALLS]add)0:now({})."}});
  }
  ExpectCases(Format("mistral", "mistral"),
              {{"[THINK]Hm [x].[/THINK]Well.[TOOL_CALLS]now[ARGS]{}", "R(Hm [x].)C(Well.)0:now({})."}});
}

TEST(OutputParser, Llama) {
  ExpectCases(
      Format("llama3_json"),
      {{"Hello {\"name\": \"now\"} {", "C(Hello {\"name\": \"now\"} {)"},
       {"I call {\"name\": \"now\", \"parameters\": {}} for it.", "C(I call )0:now({}).C( for it.)"},
       {"{ {\"a\": {\"name\": \"now\", \"parameters\": {}}", "C({ {\"a\": )0:now({})."},
       {"{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}", "0:get_weather({\"city\": \"Rome\"})."},
       {"<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}", "0:now({})."},
       {"{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"add\", \"arguments\": {\"a\": 1}}",
        "0:now({}).1:add({\"a\": 1})."},
       {"a {{{", "C(a {{{)"},
       // An answer in JSON is no call.
       {"{\"answer\": 42}", "C({\"answer\": 42})"},
       {" {\"name\": \"Ada\", \"parameters\": {}}", "C( {\"name\": \"Ada\", \"parameters\": {}})"},
       {"<|python_tag|>print(1)", "C(<|python_tag|>print(1))"}});
}

TEST(OutputParser, DeepSeek3) {
  constexpr absl::string_view kOne =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": "
      "1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  ExpectCases(Format("deepseek_v3", "deepseek_r1"),
              {{absl::StrCat("Hm.\n</think>\n\n", kOne), "R(Hm.\n)0:add({\"a\": 1})."},
               {"</think>A <｜tool▁", "C(A <｜tool▁)"},
               {"</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
                "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": \"```\"}\n```"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "0:now({}).1:add({\"a\": \"```\"})."},
               {"</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}",
                "C(<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{})"}});
}

TEST(OutputParser, DeepSeek31) {
  ExpectCases(Format("deepseek_v31", "qwen3"),
              {{"Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
                "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": {\"b\": 1}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "C(Ok)0:now({}).1:add({\"a\": {\"b\": 1}})."},
               {"<｜tool▁calls▁begin｜>?", "C(<｜tool▁calls▁begin｜>?)"},
               {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": tru", "0:add({\"a\": tru)!",
                "C(<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": tru)"}});
}

TEST(OutputParser, Kimi) {
  ExpectCases(
      Format("kimi_k2", "kimi_k2"),
      {{"<think>Hm</think>Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "R(Hm)C(Ok)0:add#functions.add:0({\"a\": 1}).1:now#functions.now:1({})."},
       // A call ends reasoning that was not closed.
       {"<think>Hm <|tool_calls_section_begin|> <|tool_call_begin|>now:0<|tool_call_argument_begin|> {}",
        "R(Hm )0:now#now:0({})."},
       {"<think>Hm <|tool_calls_section_begin|> no", "R(Hm <|tool_calls_section_begin|> no)"}});
}

}  // namespace
}  // namespace switchyard::text::parse
